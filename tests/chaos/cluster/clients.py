"""Somebody who uses the mesh, in a process of its own: `python -m tests.chaos.cluster.clients publisher|consumer NAME URL`.

It knows one address at first. What happens to it is told on its output, one JSON array a line: what, when by the clock of the machine, and
more. It comes to an end when its input does.
"""

import asyncio
import itertools
import json
import logging
import random
import sys
import time

import busway
from busway.client.channels.channel import Channel
from busway.errors import AckLate, BusError
from tests.chaos.cluster.payloads import CHANNEL, PAUSE, STREAM, WINDOW, WORK


def tell(what: str, *more: object) -> None:
    print(json.dumps([what, time.monotonic(), *more]), flush=True)


async def publish(bus: busway.Bus, name: str, stopping: asyncio.Event, watch: "Watch") -> None:
    """Store numbered messages, some of them at a time, until it is told to stop; each has an answer in the end."""
    chance, numbers = random.Random(name), itertools.count(1)

    async def one() -> None:
        number, lost = next(numbers), watch.lost
        try:
            place = await bus.publish(f"{STREAM}/{name}", f"{name} {number}", durable=True)
        except BusError as error:
            tell("failed", number, f"{type(error).__name__}: {error}")
        else:
            tell("stored", number, place.broker, place.offset, watch.lost > lost)

    while not stopping.is_set():
        await asyncio.gather(*(one() for _ in range(chance.randrange(1, 8))))
        await asyncio.sleep(PAUSE)


async def consume(bus: busway.Bus, stopping: asyncio.Event) -> None:
    """Share the channel with others, and acknowledge all; the next message does not wait for the answer to an acknowledgement."""
    async with (
        bus.channel(STREAM, CHANNEL, window=WINDOW, max_deliveries=0, backoff=[0.05, 0.5]) as channel,
        asyncio.TaskGroup() as acks,
    ):
        while not stopping.is_set():
            for message in await _some(channel):
                tell("got", message.broker, message.offset, message.payload.decode())
                acks.create_task(_ack(message))


async def _some(channel: Channel) -> list[busway.Message]:
    try:
        return await channel.take(WINDOW, timeout=0.2)
    except busway.Timeout:
        return []


async def _ack(message: busway.Message) -> None:
    place = message.broker, message.offset
    await asyncio.sleep(WORK)
    try:
        await message.ack()
    except AckLate:
        tell("late", *place)
    except BusError as error:
        tell("unsure", *place, f"{type(error).__name__}: {error}")
    else:
        tell("acked", *place)


class Watch:
    """Tells what happens to the connection."""

    def __init__(self) -> None:
        self.lost = 0

    async def run(self, bus: busway.Bus) -> None:
        events = bus.events()
        tell("at", bus.url)
        async for event in events:
            if event.kind == "lost":
                self.lost += 1
                tell("lost", event.url, str(event.error))
            elif event.kind == "resumed":
                tell("at", event.url)
            elif event.kind == "doubtful":
                tell("doubtful", event.count)
            elif event.kind != "servers":
                tell("event", event.kind, event.topic, str(event.error or ""))


async def ended() -> None:
    """Return at the end of the input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def main(role: str, name: str, url: str) -> None:
    watch, stopping = Watch(), asyncio.Event()
    async with busway.connect(url, name=name) as bus:
        watching = asyncio.create_task(watch.run(bus))
        ending = asyncio.create_task(ended())
        ending.add_done_callback(lambda _: stopping.set())
        if role == "publisher":
            await publish(bus, name, stopping, watch)
        else:
            await consume(bus, stopping)
        watching.cancel()


if __name__ == "__main__":
    logging.getLogger("busway").addHandler(logging.NullHandler())  # what is worth a warning is told as an event, too
    asyncio.run(main(*sys.argv[1:]))
