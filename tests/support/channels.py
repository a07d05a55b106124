"""Helpers for tests of channels: a stream with numbered messages, and a lost connection."""

from collections.abc import Iterable
from typing import Any

import busway
from tests.support.connection_events import abort, next_event
from tests.support.net import PATIENCE, Net, eventually, settle

STREAM = "s"
TOPIC = "t/a"


async def stream(net: Net, count: int = 0, **settings: Any) -> busway.Bus:
    """A client of a broker with a stream of numbered messages."""
    bus = await net.connect("maker")
    await bus.create_stream(STREAM, ["t/**"], **settings)
    await store(bus, 0, count)
    return bus


async def store(bus: busway.Bus, begin: int, end: int, topic: str = TOPIC) -> None:
    if begin < end:
        await bus.publish_many(topic, [b"%d" % number for number in range(begin, end)], durable=True)


def numbers(messages: Iterable[busway.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


async def some(channel: busway.Channel, count: int) -> list[busway.Message]:
    """Exactly so many messages, one by one."""
    return [await channel.recv(timeout=PATIENCE) for _ in range(count)]


async def nothing(bus: busway.Bus, channel: busway.Channel) -> bool:
    """Whether nothing has come to a channel of this client, of all that the broker has handled before."""
    await settle(bus)
    return channel.pending == 0


async def info(bus: busway.Bus, name: str = "c") -> busway.ChannelInfo:
    (found,) = [one for one in await bus.channels(STREAM) if one.name == name]
    return found


async def shown(bus: busway.Bus, name: str = "c", **figures: int) -> None:
    """Wait until the broker shows these figures of a channel."""

    async def same() -> bool:
        one = await info(bus, name)
        return all(getattr(one, key) == value for key, value in figures.items())

    await eventually(same)


async def cut(bus: busway.Bus) -> None:
    """The client loses its connection; return when it has another one."""
    events = bus.events()
    abort(bus)
    await next_event(events, "resumed")
