"""Stored messages against a list: whatever happens, a subscription sees exactly what the list has from its place on.

Publishes on several topics, subscriptions from anywhere, cut connections and restarts of the broker, in random order.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import busway
from busway.positions import Position, Positions
from busway.testing import FaultProxy
from tests.support.model import matches
from tests.support.net import PATIENCE, Net, within

TOPICS = ("a", "a/b", "a/c", "d")
PATTERNS = ("**", "a/*", "a", "d", "a/**")
STEPS = 60


@dataclass
class Model:
    """The stream: topic and payload, in order."""

    stored: list[tuple[str, bytes, Position]] = field(default_factory=list)

    def add(self, topic: str, payload: bytes, place: Position) -> None:
        assert place.offset == len(self.stored)
        assert place.sequence == 1 + sum(topic == known for known, _, _ in self.stored)
        self.stored.append((topic, payload, place))

    def seen(self, pattern: str, begin: int) -> list[tuple[str, bytes]]:
        return [(topic, payload) for topic, payload, _ in self.stored[begin:] if matches(pattern, topic)]


@dataclass
class Reader:
    subscription: busway.Subscription
    pattern: str
    begin: int
    got: list[busway.Message] = field(default_factory=list)

    async def catch_up(self, model: Model) -> None:
        expected = model.seen(self.pattern, self.begin)
        while len(self.got) < len(expected):
            self.got.append(await self.subscription.recv(timeout=PATIENCE))
        assert [(message.topic, message.payload) for message in self.got] == expected
        assert (self.subscription.pending, self.subscription.missed, self.subscription.lost) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(12))
async def test_against_a_list(net: Net, tmp_path: Path, seed: int) -> None:
    chance, model, readers = random.Random(seed), Model(), list[Reader]()
    server = await net.serve(data=tmp_path / "data")
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, name="writer", reconnect=(0, 0, 0.001), timeout=PATIENCE) as writer,
        busway.connect(proxy.address, name="reader", reconnect=(0, 0, 0.001), timeout=PATIENCE) as reading,
    ):

        async def again(operation):
            """What was refused for want of a connection has not happened, so it is done again."""
            while True:
                try:
                    return await within(operation())
                except busway.Disconnected:
                    await asyncio.sleep(0.001)

        async def publish() -> None:
            topic, count = chance.choice(TOPICS), chance.choice((1, 1, 3, 40))
            payloads = [b"%d.%d" % (len(model.stored), number) for number in range(count)]
            for payload, place in zip(
                payloads, await again(lambda: writer.publish_many(topic, payloads, durable=True)), strict=True
            ):
                model.add(topic, payload, place)

        async def publish_while_cut() -> None:
            publishing = asyncio.ensure_future(publish())
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            proxy.cut()
            await publishing

        async def subscribe() -> None:
            pattern, begin = chance.choice(PATTERNS), 0
            since: str | Position | Positions = "all"
            kind = chance.randrange(4)
            if kind == 1:
                since, begin = "new", len(model.stored)
            elif kind == 2 and model.stored:
                place = chance.choice(model.stored)[2]
                since, begin = place, place.offset + 1
            elif kind == 3 and readers:
                # Where another one of the same pattern has come to.
                other = chance.choice(readers)
                await other.catch_up(model)
                pattern, since = other.pattern, Positions.parse(str(other.subscription.position))
                begin = next(iter(since.values()), 0)
                assert model.seen(pattern, begin) == []
            subscription = await again(
                lambda: reading.subscribe(pattern, since=since, limit=chance.choice((5, 1000))).start()
            )
            readers.append(Reader(subscription, pattern, begin))

        async def take() -> None:
            for reader in readers:
                for _ in range(min(reader.subscription.pending, chance.randrange(30))):
                    reader.got.append(await reader.subscription.recv(timeout=PATIENCE))

        async def leave() -> None:
            if readers:
                reader = readers.pop(chance.randrange(len(readers)))
                await reader.catch_up(model)
                await reader.subscription.close()

        async def cut() -> None:
            proxy.cut()

        async def restart() -> None:
            nonlocal server
            proxy.refusing = True
            proxy.cut()
            await server.stop(drain=0)
            server = await net.serve(data=tmp_path / "data")
            proxy.upstream, proxy.refusing = server.addresses[0], False

        steps = [publish] * 8 + [publish_while_cut] * 2 + [subscribe] * 3 + [take] * 3 + [leave, cut, restart]
        for _ in range(STEPS):
            await chance.choice(steps)()
        for reader in readers:
            await reader.catch_up(model)
    assert model.stored
