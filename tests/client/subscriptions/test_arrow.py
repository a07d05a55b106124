"""Messages of a subscription as Arrow record batches: the columns of a stream's, in batches of bounded size and time."""

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import busway
import busway.sync
from tests.support.net import PATIENCE


@pytest.fixture
async def bus() -> AsyncIterator[busway.Bus]:
    async with busway.serve() as server, server.connect(name="feed") as bus:
        await bus.create_stream("prices", topics=["price/**"])
        yield bus


async def rows(batches: AsyncIterator[pa.RecordBatch], count: int) -> pa.Table:
    """So many rows."""
    got: list[pa.RecordBatch] = []
    async with asyncio.timeout(PATIENCE):
        async for batch in batches:
            got.append(batch)
            if sum(one.num_rows for one in got) >= count:
                return pa.Table.from_batches(got).unify_dictionaries()
    raise AssertionError("the batches ended")


async def test_stored_messages_have_the_rows_of_the_stream(bus: busway.Bus) -> None:
    for number in range(10):
        fields = {"venue": "krk", "lots": number} if number % 2 else None
        await bus.publish(f"price/{number % 3}", b"%d" % number, durable=True, fields=fields)
    async with bus.subscribe("price/**", since="all") as prices:
        live = await rows(prices.arrow(), 10)
    stream = await bus.stream("prices")
    stored = pa.Table.from_batches([batch async for batch in stream.arrow()]).unify_dictionaries()
    assert live.schema == stored.schema
    assert live.to_pylist() == stored.to_pylist()


async def test_live_messages_have_no_place(bus: busway.Bus) -> None:
    async with bus.subscribe("tick/*") as ticks:
        await bus.publish_many("tick/a", [b"1", b"2", b"3"], fields={"n": 1})
        table = await rows(ticks.arrow(), 3)
    assert table["payload"].to_pylist() == [b"1", b"2", b"3"]
    assert table["topic"].to_pylist() == ["tick/a"] * 3
    assert table["sender"].to_pylist() == ["feed"] * 3
    assert table["offset"].to_pylist() == table["sequence"].to_pylist() == table["stored"].to_pylist() == [None] * 3


async def test_batches_are_bounded(bus: busway.Bus) -> None:
    async with bus.subscribe("tick/*") as ticks:
        await bus.publish_many("tick/a", [b"x"] * 10)
        await bus.flush()
        sizes: list[int] = []
        async for batch in ticks.arrow(4, within=0, columns=["payload"]):
            assert batch.schema.names == ["payload"]
            sizes.append(batch.num_rows)
            if sum(sizes) == 10:
                break
        assert max(sizes) <= 4
        waiting = asyncio.ensure_future(anext(ticks.arrow(within="1h")))
        await bus.publish("tick/a", b"kept")
        await bus.flush()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (await ticks.recv(timeout=PATIENCE)).payload == b"kept", "a cancelled reader loses nothing"


async def test_it_ends_with_the_subscription_and_leaves_out_markers(bus: busway.Bus) -> None:
    await bus.post("tick/kept", b"1")
    async with bus.subscribe("tick/*", notify=True) as ticks:
        table = await rows(ticks.arrow(), 1)
        assert table["payload"].to_pylist() == [b"1"]
        await ticks.close()
        assert [batch async for batch in ticks.arrow()] == []


async def test_wrong_arguments(bus: busway.Bus) -> None:
    async with bus.subscribe("tick/*") as ticks:
        with pytest.raises(ValueError, match="no column 'price'"):
            ticks.arrow(columns=["price"])
        with pytest.raises(ValueError, match="within: 'soon'"):
            ticks.arrow(within="soon")
        with pytest.raises(ValueError, match="most must be above zero"):
            ticks.arrow(0)


def test_the_blocking_face() -> None:
    with busway.sync.serve() as server, server.connect() as bus, bus.subscribe("tick/*") as ticks:
        bus.publish_many("tick/a", [b"%d" % number for number in range(10)])
        got: list[bytes] = []
        for batch in ticks.arrow(4):
            assert batch.num_rows <= 4
            got += batch["payload"].to_pylist()
            if len(got) == 10:
                break
        assert got == [b"%d" % number for number in range(10)]
