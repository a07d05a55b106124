"""Clients with an identity: one at a time, the latest generation wins, and earlier ones are refused."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.broker.admission import Generations
from busway.client.durable.feed import Run, RunFailed
from busway.errors import Code
from busway.settings import Identity
from busway.testing import FaultProxy
from tests.support.net import Net, until, within

SECRET = bytes(range(16))


def identity(generation: int = 0) -> Identity:
    return Identity(secret=SECRET, generation=generation)


async def texts(bus: busway.Bus) -> list[str]:
    stream = await bus.stream("default")
    return [message.text async for batch in stream.read() for message in batch]


async def ended(bus: busway.Bus) -> busway.BusError:
    """The error that a client was closed with for good."""
    await until(lambda: bus.closed)
    with pytest.raises(busway.Closed) as told:
        await bus.publish("t", "from the grave", durable=True)
    assert isinstance(told.value.__cause__, busway.BusError)
    return told.value.__cause__


async def test_the_session_is_in_the_ids(net: Net) -> None:
    bus = await net.connect(identity=identity(7))
    await bus.publish("t", "x", durable=True)
    stream = await bus.stream("default")
    (message,) = [one async for batch in stream.read() for one in batch]
    assert message.id.startswith(sha256(SECRET).hexdigest()[:16])


@pytest.mark.parametrize("generations", [(1, 2), (3, 3), (0, 0)])
async def test_the_newer_one_wins_and_the_older_one_stays_away(net: Net, generations: tuple[int, int]) -> None:
    zombie = await net.connect(identity=identity(generations[0]))
    await zombie.publish("t", "before", durable=True)
    successor = await net.connect(identity=identity(generations[1]))
    error = await ended(zombie)
    assert error.code == Code.SESSION_TAKEN
    assert "same session" in str(error)
    successor.feed().skip(10)  # or it would be the first message once more
    await successor.publish("t", "after", durable=True)
    assert await texts(successor) == ["before", "after"]
    assert successor.server["seen"]


async def test_an_older_generation_stays_outside(net: Net) -> None:
    successor = await net.connect(identity=identity(2))
    with pytest.raises(busway.ConnectFailed, match="later generation") as told:
        await net.connect(identity=identity(1))
    assert told.value.code == Code.SESSION_TAKEN
    await successor.publish("t", "still there", durable=True)
    await successor.close()
    with pytest.raises(busway.ConnectFailed, match="later generation"):
        await net.connect(identity=identity(1))
    assert (await net.connect(identity=identity(2))).server["seen"]


async def test_one_that_was_cut_off_does_not_come_back(net: Net) -> None:
    """It lost its connection, its successor came and went, and now it reconnects."""
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy:
        zombie = await busway.connect(proxy.address, identity=identity(1), reconnect=[0.01])
        await zombie.publish("t", "before", durable=True)
        proxy.refusing = True
        proxy.reset()
        await until(lambda: zombie.state == "lost")
        late = asyncio.ensure_future(zombie.publish("t", "late", durable=True))
        successor = await net.connect(identity=identity(2))
        successor.feed().skip(10)
        await successor.publish("t", "after", durable=True)
        await successor.close()
        proxy.refusing = False
        error = await ended(zombie)
        assert error.code == Code.SESSION_TAKEN
        with pytest.raises(busway.Closed):
            await within(late)
    assert await texts(await net.connect()) == ["before", "after"]


async def test_the_broker_says_what_it_knows(net: Net, tmp_path: Path) -> None:
    server = await net.serve(data=tmp_path / "data", fields={"site": "krk"})
    first = await net.connect(identity=identity(1))
    assert first.server["fields"] == {"site": "krk"}
    assert not first.server["seen"]
    assert "seen" not in (await net.connect()).server
    since = first.server["since"]
    await server.stop()
    await net.serve(data=tmp_path / "data")
    again = await net.connect(identity=identity(0))
    assert not again.server["seen"]  # it remembers only while it runs
    assert again.server["since"] > since


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"secret": b"x" * 15}, "16 to 64 random bytes"),
        ({"secret": b"x" * 65}, "16 to 64 random bytes"),
        ({"secret": SECRET, "generation": -1}, "must be a number"),
        ({"secret": SECRET, "generation": 2**64}, "must be a number"),
    ],
)
def test_an_identity_is_checked(wrong: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Identity(**wrong)


def test_an_identity_does_not_show_its_secret() -> None:
    assert repr(SECRET) not in repr(identity(3))
    with pytest.raises(TypeError, match="must be bytes") as told:
        Identity(secret="xyzzy")  # type: ignore[arg-type]
    assert "xyzzy" not in str(told.value)


def test_few_fences_are_remembered() -> None:
    fences = Generations(2)
    assert [fences.enter(session, 5) for session in (1, 2, 1, 3)] == [False, False, True, False]
    assert [fences.passes(session, 4) for session in (1, 2, 3)] == [False, True, False]


async def test_a_feed_stores_in_order(net: Net) -> None:
    bus = await net.connect()
    feed = bus.feed()
    many = [str(number) for number in range(3000)]
    await feed.send(
        [Run(0, "a", many), Run(3000, "b", ["one"], time=1_700_000_000_000_000_000), Run(3001, "a", ["last"])]
    )
    await feed.done()
    stream = await bus.stream("default")
    read = [message async for batch in stream.read() for message in batch]
    assert [message.text for message in read] == [*many, "one", "last"]
    assert read[3000].time_ns == 1_700_000_000_000_000_000


async def test_a_feed_skips_numbers(net: Net) -> None:
    bus = await net.connect(identity=identity())
    feed = bus.feed()
    feed.skip(1 << 40)
    await feed.send([Run(0, "a", ["x", "y"]), Run(2, "b", ["z"])])
    await feed.done()
    stream = await bus.stream("default")
    numbers = [int(message.id[16:], 16) async for batch in stream.read() for message in batch]
    assert numbers == [(1 << 40) + 1 + at for at in range(3)]


async def test_a_feed_names_the_run_that_was_refused(net: Net) -> None:
    bus = await net.connect()
    feed = bus.feed()
    with pytest.raises(RunFailed) as told:
        await feed.send([Run(0, "a", ["x"]), Run(1, "b/*", ["y"])])
        await feed.done()
    assert told.value.run.first == 1
    assert told.value.error.code == Code.WILDCARD


async def test_a_feed_waits_only_so_long(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect(reconnect=[0.01])
    feed = bus.feed(0.05)
    await server.stop()
    with pytest.raises(busway.Timeout, match=r"stored nothing for 0\.05 s"):
        await feed.send([Run(0, "a", ["x"])])
        await feed.done()
