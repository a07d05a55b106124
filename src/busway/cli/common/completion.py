"""Shell completion for the names of streams, channels and topics: asks the broker, with a short time limit.

The shared flags call it. If the request fails, it suggests and prints nothing, because the user is typing a command.
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
"""Seconds to connect and to get the names."""
_MOST: Final = 1000
"""Largest number of suggestions."""

_Ask: TypeAlias = Callable[[busway.Bus, dict[str, Any]], Awaitable[list[str]]]


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    return _suggest(ctx, incomplete, _streams)


def channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Suggest channels of the stream that stands before the cursor."""
    return _suggest(ctx, incomplete, _channels)


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Suggest topics that have stored or retained messages."""
    return _suggest(ctx, incomplete, _topics)


def streams_and_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _suggest(ctx, incomplete, _streams_and_topics)


def _suggest(ctx: typer.Context, incomplete: str, ask: _Ask) -> list[str]:
    logging.getLogger("busway").addHandler(logging.NullHandler())
    with contextlib.suppress(Exception):
        names = asyncio.run(_ask(ctx.params, ask))
        return sorted({name for name in names if name.startswith(incomplete)})[:_MOST]
    return []


async def _ask(given: dict[str, Any], ask: _Ask) -> list[str]:
    from busway.cli.common.connect import Link  # connect imports flags, which imports this module

    flags = {field.name: given[field.name] for field in dataclasses.fields(Link) if given.get(field.name) is not None}
    link = dataclasses.replace(Link(**flags), connect_timeout=_LIMIT, wait=False).checked()
    async with asyncio.timeout(_LIMIT), link.connect(reconnect=False) as bus:
        return await ask(bus, given)


async def _streams(bus: busway.Bus, _given: dict[str, Any]) -> list[str]:
    return [info.name for info in await bus.streams()]


async def _channels(bus: busway.Bus, given: dict[str, Any]) -> list[str]:
    return [info.name for info in await bus.channels(given["stream"])]


async def _topics(bus: busway.Bus, _given: dict[str, Any]) -> list[str]:
    found = [message.topic for message in await bus.kept("**")]
    for info in await bus.streams():
        found += [entry.topic for entry in await (await bus.stream(info.name)).topics()]
    return found


async def _streams_and_topics(bus: busway.Bus, given: dict[str, Any]) -> list[str]:
    return [*await _streams(bus, given), *await _topics(bus, given)]
