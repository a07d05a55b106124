"""Busway over TCP or a Unix socket.

Two ways: `batch` is publish_many() with batches(), `single` one awaited publish() per message with `async for`.
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import busway
from benchmarks.peers.load import CHUNK, Load
from benchmarks.peers.role import Control, ask, forever, run

from .base import GROUP, PUBSUB, REQUESTS, System

T = TypeVar("T")


class Busway(System):
    works = PUBSUB | GROUP | REQUESTS
    modes = ("batch", "single")

    def __init__(self, transport: str) -> None:
        self.name = f"busway-{transport}"
        self._unix = transport == "unix"

    def version(self) -> str | None:
        return f"busway {busway.__version__}"

    def address(self, folder: Path) -> str:
        return f"unix:{folder / 'bus'}" if self._unix else f"tcp://{super().address(folder)}"

    def serve(self, load: Load, control: Control) -> None:
        async def work() -> None:
            begin = monotonic()
            async with busway.serve(load.url, data=load.data or None) as server:
                control.tell(opened=monotonic() - begin)
                await server.serve_forever()

        run(control, work())

    def publish(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                topic, payload, fields = load.topic, load.payload, load.fields or None
                control.ready_to_go()
                if load.mode == "single":
                    for chunk in control.chunks(load):
                        for _ in chunk:
                            await bus.publish(topic, payload)
                elif load.count:
                    pairs = [(f"{topic}/{number % load.count}", payload) for number in range(CHUNK)]
                    for _ in control.chunks(load):
                        await bus.publish_many(pairs)
                else:
                    payloads = [payload] * CHUNK
                    for _ in control.chunks(load):
                        await bus.publish_many(topic, payloads, fields=fields)
                await bus.flush(timeout=60)
                control.published()

        run(control, work())

    def subscribe(self, load: Load, control: Control) -> None:
        async def work() -> None:
            where = load.fields or None
            async with (
                busway.connect(load.url) as bus,
                bus.subscribe(load.topic, group=load.group, where=where) as messages,
            ):
                control.ready()
                count = 0
                with control.counting(load) as tally:
                    mark = tally.mark
                    try:
                        if load.mode == "single":
                            async for _message in messages:
                                count += 1
                                if count >= mark:
                                    mark = tally.note(count)
                        else:
                            async for batch in messages.batches():
                                count += len(batch)
                                if count >= mark:
                                    mark = tally.note(count)
                    finally:
                        tally.count, tally.missed = count, messages.missed

        run(control, work())

    def request(self, load: Load, control: Control) -> None:
        async def work() -> None:
            async with busway.connect(load.url) as bus:
                topic, payload = load.topic, load.payload
                await ask(load, control, lambda: bus.request(topic, payload, timeout=10))

        run(control, work())

    def respond(self, load: Load, control: Control) -> None:
        async def answer(message: busway.Message) -> bytes:
            return message.payload

        async def work() -> None:
            async with busway.connect(load.url) as bus, bus.serve(load.topic, answer):
                control.ready()
                await forever()

        run(control, work())

    def hold(self, load: Load, control: Control) -> None:
        """Have `load.count` subscriptions, none of which matches what is published: by its topic, or by its fields."""

        def wanted(number: int) -> dict[str, Any]:
            if not load.fields:
                return {"pattern": f"plant/{number}/*/temperature"}
            return {"pattern": load.topic, "where": {name: f"{value}{number}" for name, value in load.fields.items()}}

        async def work() -> None:
            async with busway.connect(load.url) as bus:
                control.ready_to_go()
                held = []
                for begin in range(0, load.count, CHUNK):
                    some = range(begin, min(begin + CHUNK, load.count))
                    held += await asyncio.gather(*(_entered(bus.subscribe(**wanted(number))) for number in some))
                control.tell(held=len(held))
                await forever()

        run(control, work())

    def idle(self, load: Load, control: Control) -> None:
        """Have `load.count` connections that do nothing."""

        async def work() -> None:
            control.ready_to_go()
            held = []
            for begin in range(0, load.count, 100):
                some = range(begin, min(begin + 100, load.count))
                held += await asyncio.gather(*(_entered(busway.connect(load.url, timeout=30)) for _ in some))
            control.tell(held=len(held))
            await forever()

        run(control, work())


async def _entered(waiting: Awaitable[T]) -> T:
    return await waiting
