"""Channels of a real broker with random consumers that come, take, acknowledge, fail and vanish, and brokers that restart.

The model is a set: what was acknowledged never comes again, everything else does, in the end all is done.
"""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import busway
from tests.support.net import PATIENCE, until
from tests.support.strength import examples

STEPS = st.lists(
    st.sampled_from(
        ["store", "store", "join", "take", "take", "ack", "ack", "nack", "leave", "cut", "drop", "restart", "seek"]
    ),
    min_size=5,
    max_size=40,
)


class Consumer:
    """A client with a channel, and what it has in its hands."""

    def __init__(self, bus: busway.Bus, channel: busway.Channel) -> None:
        self.bus, self.channel = bus, channel
        self.has: list[busway.Message] = []


class World:
    def __init__(self, folder: Path, seed: int, *, lasting: bool) -> None:
        self.chance = random.Random(seed)
        self.folder, self.lasting = folder, lasting
        self.address = f"unix:{folder / 'bus'}"
        self.stored = 0
        self.done: set[int] = set()
        self.doubtful: set[int] = set()
        """Whose acknowledgement was lost with a connection: done or not."""
        self.consumers: list[Consumer] = []

    async def begin(self) -> None:
        self.server = await busway.serve(self.address, data=self.folder / "data" if self.lasting else None).start()
        self.maker = await busway.connect(self.address, reconnect=(0.001,))
        await self.maker.create_stream("s", ["t"])
        await self.maker.create_channel("s", "c", lease=0, max_deliveries=0, backoff=[])

    async def end(self) -> None:
        for consumer in self.consumers:
            await consumer.bus.close()
        await self.maker.close()
        await self.server.stop()

    async def store(self) -> None:
        count = self.chance.choice([1, 2, 20])
        numbers = range(self.stored, self.stored + count)
        await self.maker.publish_many("t", [b"%d" % number for number in numbers], durable=True)
        self.stored += count

    async def join(self) -> None:
        if len(self.consumers) < 4:
            bus = await busway.connect(self.address, reconnect=(0.001,))
            channel = await bus.channel("s", "c", window=self.chance.choice([0, 1, 5, 50]))
            self.consumers.append(Consumer(bus, channel))

    def some(self) -> Consumer | None:
        return self.chance.choice(self.consumers) if self.consumers else None

    async def take(self) -> None:
        if (consumer := self.some()) is None:
            return
        try:
            got = await consumer.channel.take(self.chance.choice([1, 3, 30]), timeout=0.005)
        except busway.Timeout:
            return
        numbers = [int(message.payload) for message in got]
        assert len(set(numbers)) == len(numbers)
        self.look(numbers)
        consumer.has += got

    def look(self, numbers: list[int]) -> None:
        again = self.done.intersection(numbers)
        assert not again, f"{sorted(again)} were acknowledged and came again"

    def part(self, consumer: Consumer) -> list[busway.Message]:
        self.chance.shuffle(consumer.has)
        count = self.chance.randint(1, len(consumer.has))
        part, consumer.has = consumer.has[:count], consumer.has[count:]
        return part

    async def ack(self) -> None:
        consumer = self.some()
        if consumer is None or not consumer.has:
            return
        part = self.part(consumer)
        numbers = {int(message.payload) for message in part}
        outcome = await asyncio.gather(*(message.ack() for message in part), return_exceptions=True)
        for message, error in zip(part, outcome, strict=True):
            if isinstance(error, busway.Disconnected):
                self.doubtful.add(int(message.payload))
            elif error is not None:
                raise error
        self.done |= numbers - self.doubtful

    async def nack(self) -> None:
        consumer = self.some()
        if consumer is not None and consumer.has:
            await consumer.channel.nack(self.part(consumer), delay=self.chance.choice([0, 0, 0.002]))

    async def leave(self) -> None:
        if (consumer := self.some()) is not None:
            self.consumers.remove(consumer)
            await consumer.channel.close()
            await consumer.bus.close()

    async def cut(self) -> None:
        """It comes back, and is given anew what it had."""
        if (consumer := self.some()) is not None and (connection := consumer.bus._core.connection) is not None:
            connection.transport.abort()
            await until(
                lambda: consumer.bus._core.connection not in (None, connection) and consumer.bus.state == "connected"
            )
            consumer.has.clear()

    async def drop(self) -> None:
        """It does not come back."""
        if (consumer := self.some()) is not None and consumer.bus._core.connection is not None:
            self.consumers.remove(consumer)
            unheard = asyncio.gather(*(message.ack() for message in consumer.has), return_exceptions=True)
            self.doubtful |= {int(message.payload) for message in consumer.has}
            consumer.bus._core.connection.transport.abort()
            await unheard
            await consumer.bus.close()

    async def restart(self) -> None:
        if not self.lasting:
            return
        await self.server.stop()
        self.server = await busway.serve(self.address, data=self.folder / "data").start()
        buses = [self.maker, *(consumer.bus for consumer in self.consumers)]
        await until(lambda: all(bus.state == "connected" for bus in buses))
        for consumer in self.consumers:
            consumer.has.clear()

    async def seek(self) -> None:
        """From here on nothing that lies behind it was acknowledged, and everything before it was."""
        offset = self.chance.randint(0, self.stored)
        for consumer in self.consumers:
            await consumer.channel.close()
            await consumer.bus.close()
        self.consumers.clear()
        assert await self.maker.seek_channel("s", "c", offset) == offset
        self.done = set(range(offset))
        self.doubtful.clear()

    async def finish(self) -> None:
        """One who acknowledges everything that is left."""
        for consumer in self.consumers:
            await consumer.channel.close()
        left = set(range(self.stored)) - self.done
        seen: Counter[int] = Counter()
        async with self.maker.channel("s", "c", window=7) as channel:
            while not left - self.doubtful <= seen.keys():
                got = await channel.take(timeout=PATIENCE)
                numbers = [int(message.payload) for message in got]
                self.look(numbers)
                seen.update(numbers)
                await channel.ack(got)
            while (await self.maker.channels("s"))[0].lag:
                try:
                    await channel.ack(await channel.take(timeout=0.01))
                except busway.Timeout:
                    continue
        (info,) = await self.maker.channels("s")
        assert (info.floor, info.lag, info.lost) == (self.stored, 0, 0)
        assert not seen or max(seen.values()) == 1


@pytest.mark.parametrize("lasting", [False, True])
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_what_was_acknowledged_never_comes_again_all_else_does(lasting: bool, steps: list[str], seed: int) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), seed, lasting=lasting)
            async with asyncio.timeout(60):
                await world.begin()
                try:
                    for step in steps:
                        await getattr(world, step)()
                    await world.finish()
                finally:
                    await world.end()

    busway.run(run())
