"""Busway's streams and channels over TCP.

Storing: `many` is publish_many() in chunks of 256, `halves` two tasks with chunks of 128, `single` 256 awaited publishes in flight. Reading: `subscribe` with
since="all" in batches, `read` of the stream. Taking: `take` without a window, acknowledged by the batch and awaited; `pipeline`
the same, but the acknowledgement is awaited when the next batch is here; `window` is message.ack() for each of at most 256 in flight. `arrow` reads to Arrow, all columns or the payload alone.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import ClassVar

import busway
from benchmarks.peers.load import IN_FLIGHT, SHARES, Load
from benchmarks.peers.role import Acknowledged, Consumed, Control, keep_in_flight, run
from busway.streams import Safety

from .base import STORED, Store
from .busway import Busway

STREAM = "bench"
CHANNEL = "workers"
FILL = 8192
BATCH = 4096


class BuswayStreams(Store):
    name = "busway-streams"
    works = STORED | {"stream", "long"}
    modes: ClassVar[dict[str, Sequence[str]]] = {
        "stream": ("",),
        "long": ("",),
        "written": ("many", "halves", "single"),
        "synced": ("many", "halves", "single"),
        "catchup": ("subscribe", "read"),
        "take": ("take", "pipeline", "window"),
    }

    def __init__(self) -> None:
        self._server = Busway("tcp")

    def version(self) -> str | None:
        return self._server.version()

    def address(self, folder: Path) -> str:
        return self._server.address(folder)

    def serve(self, load: Load, control: Control) -> None:
        self._server.serve(load, control)

    def append(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                stream = await _make(bus, load)
                topic, payload = load.topic, load.payload
                if load.mode == "single":
                    await keep_in_flight(load, control, lambda: bus.publish(topic, payload, durable=True))
                else:
                    tasks = SHARES if load.mode == "halves" else 1
                    payloads = [payload] * (IN_FLIGHT // tasks)
                    control.ready_to_go()
                    acknowledged = Acknowledged(load)

                    async def publish() -> None:
                        while acknowledged.add(len(await bus.publish_many(topic, payloads, durable=True))):
                            pass

                    await asyncio.gather(*(publish() for _ in range(tasks)))
                    acknowledged.tell(control)
                control.tell(stored=(await stream.info()).count)

        run(control, work())

    def fill(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                stream = await _make(bus, load)
                begin = monotonic()
                for done in range(0, load.messages, FILL):
                    payloads = [load.payload] * min(FILL, load.messages - done)
                    await bus.publish_many(load.topic, payloads, durable=True)
                elapsed = monotonic() - begin
                control.tell(filled=load.messages, elapsed=elapsed, bytes=(await stream.info()).bytes)

        run(control, work())

    def catch_up(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                stream = await bus.stream(STREAM)
                consumed = Consumed(load, control)
                count = 0
                if load.mode == "read":
                    async for batch in stream.read(batch=BATCH):
                        count += len(batch)
                else:
                    async with bus.subscribe(load.topic, since="all") as messages:
                        async for batch in messages.batches():
                            count += len(batch)
                            if count >= consumed.wanted:
                                break
                consumed.over()
                consumed.tell(count)

        run(control, work())

    def arrow(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                stream = await bus.stream(STREAM)
                batches = stream.arrow(columns=["payload"]) if load.mode == "payload" else stream.arrow()
                consumed = Consumed(load, control)
                count = 0
                async for batch in batches:
                    count += batch.num_rows
                consumed.over()
                consumed.tell(count)

        run(control, work())

    def take(self, load: Load, control: Control) -> None:
        async def work() -> None:
            window = IN_FLIGHT if load.mode == "window" else 0
            async with busway.connect(load.url) as bus, bus.channel(STREAM, CHANNEL, window=window) as jobs:
                consumed = Consumed(load, control)
                count = 0
                if window:
                    async for message in jobs:
                        settled = message.ack()
                        count += 1
                        if count == consumed.wanted:
                            await settled
                            break
                elif load.mode == "pipeline":
                    settled = jobs.ack(batch := await jobs.take(IN_FLIGHT))
                    while (count := count + len(batch)) < consumed.wanted:
                        batch = await jobs.take(IN_FLIGHT)
                        await settled
                        settled = jobs.ack(batch)
                    await settled
                else:
                    while count < consumed.wanted:
                        batch = await jobs.take(IN_FLIGHT)
                        await jobs.ack(batch)
                        count += len(batch)
                consumed.over()
                [channel] = await bus.channels(STREAM)
                consumed.tell(count, channel.lag)

        run(control, work())


async def _make(bus: busway.Bus, load: Load) -> busway.Stream:
    safety: Safety = "synced" if load.safety == "synced" else "written"
    return await bus.create_stream(STREAM, [load.topic], store="disk", safety=safety, max_age=None)
