"""Stores against a list: after any sequence of calls a store has the records of the list."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as some
from hypothesis import HealthCheck, given, settings

from busway.broker.streams.stores import Store, TopicUsage, Usage
from tests.support.postgres import Postgres
from tests.support.store_kits import NOON, DatabaseKit, Writer, everything, postgresql_kit, sqlite_kit
from tests.support.strength import examples

TOPICS = ("a", "b/c", "ü")
batch = some.lists(some.tuples(some.sampled_from(TOPICS), some.integers(0, 300), some.integers(-3, 3)), max_size=6)
limit = some.none() | some.integers(0, 60)
step = some.one_of(
    some.tuples(some.just("append"), batch),
    some.tuples(some.just("append"), batch),
    some.tuples(some.just("repeat"), some.integers(0, 10)),
    some.tuples(some.just("trim"), some.tuples(limit, limit, limit, limit)),
    some.tuples(some.just("purge"), some.none()),
    some.tuples(some.just("reopen"), some.none()),
    some.tuples(some.just("read"), some.tuples(some.integers(0, 60), some.integers(1, 2000))),
)


class Model:
    """A store, and the list that says what it must have."""

    def __init__(self, kit: DatabaseKit, store: Store) -> None:
        self.kit = kit
        self.store = store
        self.writer = Writer()
        self.first = 0
        self.now = NOON

    async def append(self, what: list[tuple[str, int, int]]) -> None:
        made = []
        for topic, size, later in what:
            self.now = max(self.now, self.now + later)
            made += self.writer.make(topic=topic, payload=b"x" * size, stored=self.now)
        await self.store.append(made)

    async def repeat(self, count: int) -> None:
        await self.store.append(self.writer.records[len(self.writer.records) - count :] if count else [])

    async def trim(self, limits: tuple[int | None, ...]) -> None:
        age, size, count, hold = limits
        size = None if size is None else size * 100
        left = self.left
        while left and (
            (age is not None and left[0].stored < self.now - age)
            or (size is not None and sum(record.size for record in left) > size)
            or (count is not None and len(left) > count)
        ):
            left = left[1:]
        first = left[0].offset if left else self.writer.next
        beyond = max(self.first, first)
        first = max(self.first, first if hold is None else min(first, hold))
        held = self.writer.records[first:beyond]
        trimmed = await self.store.trim(self.now, max_age=age, max_bytes=size, max_count=count, hold=hold)
        assert trimmed == (first, first - self.first, len(held), sum(record.size for record in held))
        self.first = first

    async def purge(self, _: None) -> None:
        await self.store.purge()
        self.first = self.writer.next

    async def reopen(self, _: None) -> None:
        self.store = await self.kit.reopen(self.store)

    async def read(self, what: tuple[int, int]) -> None:
        from_, most = what
        wanted = [record for record in self.left if record.offset >= from_]
        fits = 0
        while fits < len(wanted) and sum(record.size for record in wanted[: fits + 1]) <= most:
            fits += 1
        assert await self.store.read(from_, most) == wanted[: max(1, fits)]

    @property
    def left(self) -> list[Any]:
        return self.writer.records[self.first :]

    async def check(self) -> None:
        left = self.left
        assert (self.store.first, self.store.next) == (self.first, self.writer.next)
        assert await everything(self.store, most_bytes=500) == left
        assert await self.store.usage() == Usage(sum(record.size for record in left), len(left))
        assert await self.store.sequences() == self.writer.sequences
        topics = {topic: [record.sequence for record in left if record.topic == topic] for topic in TOPICS}
        assert await self.store.topics() == [
            TopicUsage(topic, found[0], found[-1], len(found)) for topic, found in sorted(topics.items()) if found
        ]
        for at in range(NOON, self.now + 2):
            after = (record.offset for record in left if record.stored >= at)
            assert await self.store.find_time(at) == next(after, self.writer.next)
        for record in left[::3]:
            assert await self.store.find(record.topic, record.sequence) == record.offset


async def play(kit: DatabaseKit, steps: list[tuple[str, Any]]) -> None:
    model = Model(kit, await kit.open())
    try:
        for name, what in steps:
            await getattr(model, name)(what)
            await model.check()
    finally:
        await kit.close()


@given(steps=some.lists(step, max_size=12))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_has_what_a_list_has(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(sqlite_kit(Path(folder)), steps))


@given(steps=some.lists(step, max_size=12))
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_postgresql_has_what_a_list_has(postgres: Postgres, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(play(postgresql_kit(postgres), steps))
