"""Channels and their journal: nothing is acknowledged before the journal has it, and a failing journal is reported."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

import busway
from busway.broker.channels.state.progress import Entry
from tests.support.channels import STREAM, info, some, store, stream
from tests.support.connection_events import abort
from tests.support.net import PATIENCE, Net, settle, until, within


class SlowNotes:
    """A journal whose disk takes its time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.waiting: list[asyncio.Future[None]] = []

    def write(self, entries: Iterable[Entry]) -> "asyncio.Future[None]":
        self.entries += entries
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]


def slow(net: Net) -> SlowNotes:
    """Put one under the channel c."""
    assert net.server is not None
    hub: Any = net.server._hub
    notes = hub.channels.get(STREAM, "c").journal = SlowNotes()
    return notes


async def test_an_acknowledgement_is_answered_when_it_is_noted(net: Net) -> None:
    bus = await stream(net, 3)
    async with bus.channel(STREAM, "c") as channel:
        first, second, third = await some(channel, 3)
        notes = slow(net)
        acking = asyncio.ensure_future(_ack(channel, first, second))
        await until(lambda: notes.waiting)
        await settle(bus)
        assert not acking.done()
        notes.waiting[0].set_result(None)
        await within(acking)
        failing = asyncio.ensure_future(_ack(channel, third))
        await until(lambda: len(notes.waiting) == 2)
        notes.waiting[1].set_exception(busway.StoreFailed("the disk is full"))
        with pytest.raises(busway.StoreFailed, match="full"):
            await within(failing)


async def _ack(channel: busway.Channel, *messages: busway.Message) -> None:
    await channel.ack(messages)


async def test_who_is_gone_is_not_answered_in_another_ones_place(net: Net) -> None:
    """The number of its connection is used again before its acknowledgement is noted."""
    bus = await stream(net, 2)
    lost = await net.connect(reconnect=None)
    channel = await lost.channel(STREAM, "c", window=1)
    message = await channel.recv(timeout=PATIENCE)
    notes = slow(net)
    message.ack()
    await until(lambda: notes.waiting)
    abort(lost)
    await until(lambda: lost.closed)
    other = await net.connect()
    events = other.events()
    await settle(other)
    for one in notes.waiting:
        one.set_result(None)
    await settle(other, bus)
    assert [event.kind for event in events._queue if event.kind == "rejected"] == []
    await store(bus, 2, 3)
    assert (await info(bus)).consumers == 0
