"""Names of streams, channels and topics for the completion of a shell: the broker is asked, with a short time limit.

Nothing is printed and nothing is suggested if that fails: the user is in the middle of typing a command.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import typer

import busway

_LIMIT: Final = 2.0
"""Seconds to connect and to ask."""
_MOST: Final = 1000
"""Suggestions at most."""

_Ask: TypeAlias = Callable[[busway.Bus, dict[str, Any]], Awaitable[list[str]]]


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    return _suggest(ctx, incomplete, _streams)


def channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """The channels of the stream that the command line names already."""
    return _suggest(ctx, incomplete, _channels)


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that have stored or retained messages."""
    return _suggest(ctx, incomplete, _topics)


def streams_and_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _suggest(ctx, incomplete, _streams_and_topics)


def _suggest(ctx: typer.Context, incomplete: str, ask: _Ask) -> list[str]:
    logging.getLogger("busway").addHandler(logging.NullHandler())
    with contextlib.suppress(Exception):
        names = asyncio.run(_ask(ctx.params, ask))
        return sorted({one for one in names if one.startswith(incomplete)})[:_MOST]
    return []


async def _ask(given: dict[str, Any], ask: _Ask) -> list[str]:
    from busway.cli.common.connect import Link  # link imports flags, which have these functions

    flags = {one.name: given[one.name] for one in dataclasses.fields(Link) if given.get(one.name) is not None}
    link = dataclasses.replace(Link(**flags), connect_timeout=_LIMIT, wait=False).checked()
    async with asyncio.timeout(_LIMIT), link.connect(reconnect=False) as bus:
        return await ask(bus, given)


async def _streams(bus: busway.Bus, _given: dict[str, Any]) -> list[str]:
    return [one.name for one in await bus.streams()]


async def _channels(bus: busway.Bus, given: dict[str, Any]) -> list[str]:
    return [one.name for one in await bus.channels(given["stream"])]


async def _topics(bus: busway.Bus, _given: dict[str, Any]) -> list[str]:
    found = [one.topic for one in await bus.kept("**")]
    for info in await bus.streams():
        found += [one.topic for one in await (await bus.stream(info.name)).topics()]
    return found


async def _streams_and_topics(bus: busway.Bus, given: dict[str, Any]) -> list[str]:
    return [*await _streams(bus, given), *await _topics(bus, given)]
