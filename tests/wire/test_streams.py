"""Stored messages for a client that knows only docs/protocol.md: refused frames get an error, and other clients
continue.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import busway
from tests.support import wire
from tests.support.net import PATIENCE, Net, payloads
from tests.support.wire import RawClient

HOUR = 3600 * 10**9
OUT_OF_RANGE = 48


@pytest.fixture
async def witness(net: Net) -> AsyncIterator[busway.Subscription]:
    """Somebody else, who reads everything stored and must not be disturbed."""
    bus = await net.connect("witness")
    async with bus.subscribe("**", since="all") as everything:
        yield everything
        await bus.publish("still", b"here", durable=True)
        while (await everything.recv(timeout=PATIENCE)).payload != b"here":
            pass
    assert net.server is not None
    assert net.server.stats()["errors"] == 0


@pytest.fixture
async def raw(net: Net, witness: busway.Subscription) -> AsyncIterator[RawClient]:
    assert net.server is not None
    async with await RawClient.welcomed(net.server.addresses[0], 0xABCD, "raw") as client:
        await client.send(wire.topic(0, "t"), wire.topic(1, "u"), wire.topic(2, "a/*"), wire.topic(3, "$bus/info"))
        yield client


async def stored(raw: RawClient, frame: bytes) -> wire.Stored:
    await raw.send(frame)
    said: wire.Stored = await raw.expect(wire.STORED)
    return said


async def refused(raw: RawClient, frame: bytes) -> int:
    await raw.send(frame)
    result = await raw.expect(wire.RESULT)
    assert result.text
    code: int = result.code
    return code


async def read(raw: RawClient, count: int, sub: int = 1, since: Any = ("all", None), **more: Any) -> list[wire.Handed]:
    """So many records of a subscription."""
    await raw.send(wire.subscribe(sub, 1000 + sub, "**", since=since, **more))
    assert (await raw.expect(wire.RESULT)).code == 0
    assert (await raw.expect(wire.GAP))[0] == sub
    return [await raw.expect(wire.RECORD) for _ in range(count)]


async def test_store_and_read(raw: RawClient, witness: busway.Subscription) -> None:
    assert await stored(raw, wire.store(0, b"1", 1, time=5)) == ("default", 1, 1, 0, 1)
    await raw.send(wire.store(0, b"2", 2), wire.store(1, b"3", 3), wire.store(1, b"4", 4))
    answers: list[wire.Stored] = []
    while sum(one.count for one in answers) < 3:
        answers.append(await raw.expect(wire.STORED))
    places = {one.number + more: one.offset + more for one in answers for more in range(one.count)}
    assert places == {2: 1, 3: 2, 4: 3}
    got = await read(raw, 4)
    assert [one.flags for one in got] == [wire.REPLAY] * 3 + [wire.REPLAY | wire.LAST]
    assert [(one.record.topic, one.record.payload, one.record.offset, one.record.sequence) for one in got] == [
        ("t", b"1", 0, 1),
        ("t", b"2", 1, 2),
        ("u", b"3", 2, 1),
        ("u", b"4", 3, 2),
    ]
    assert all(
        one.record.sound and one.record.sender == "raw" and one.record.session == wire.session(0xABCD) for one in got
    )
    assert got[0].record.time == 5
    await raw.send(wire.store(0, b"5", 5))
    live = await raw.expect(wire.RECORD)
    assert (live.flags, live.ids, live.record.payload, live.record.offset) == (0, (1,), b"5", 4)
    assert await raw.expect(wire.STORED) == ("default", 5, 1, 4, 3)
    assert raw.slots.streams[0][0] == raw.welcome["guid"]


async def test_a_resend_is_answered_with_its_first_place(net: Net, raw: RawClient) -> None:
    first = await stored(raw, wire.store(0, b"first", 7))
    await stored(raw, wire.store(0, b"other", 8))
    assert await stored(raw, wire.store(0, b"again", 7)) == first
    assert net.server is not None
    async with await RawClient.welcomed(net.server.addresses[0], 0xABCD, "raw") as later:
        # A new connection of the same session, as after a loss.
        await later.send(wire.topic(5, "t"))
        assert await stored(later, wire.store(5, b"again", 7)) == first
        assert await stored(later, wire.store(5, b"new", 9)) == ("default", 9, 1, 2, 3)
        assert [one.record.payload for one in await read(later, 3)] == [b"first", b"other", b"new"]


async def test_another_session_with_the_same_number_is_another_message(net: Net, raw: RawClient) -> None:
    await stored(raw, wire.store(0, b"one", 7))
    assert net.server is not None
    async with await RawClient.welcomed(net.server.addresses[0], 0xABCE) as other:
        await other.send(wire.topic(0, "t"))
        assert (await stored(other, wire.store(0, b"two", 7))).sequence == 2


async def test_numbers_may_go_backwards(raw: RawClient) -> None:
    """What was held up is sent late: a number that was never stored is new, whatever came since."""
    assert (await stored(raw, wire.store(0, b"9", 9))).offset == 0
    assert (await stored(raw, wire.store(0, b"3", 3))).offset == 1
    assert (await stored(raw, wire.store(0, b"9", 9))).offset == 0
    assert (await stored(raw, wire.store(0, b"3", 3))).offset == 1
    assert (await stored(raw, wire.store(0, b"max", (1 << 64) - 1))).offset == 2
    assert (await stored(raw, wire.store(0, b"max", (1 << 64) - 1))).offset == 2


async def test_wildcards_and_topics_of_the_broker(raw: RawClient) -> None:
    assert await refused(raw, wire.store(2, b"", 1)) == 23
    assert await refused(raw, wire.store(3, b"", 2)) == 24
    assert (await stored(raw, wire.store(0, b"", 3))).offset == 0


async def test_times(raw: RawClient, witness: busway.Subscription) -> None:
    now = time.time_ns()
    for number, times in enumerate([(0, 0), (now - HOUR, 0), (0, now + HOUR), (-1, -1), (now + HOUR, now - HOUR)], 1):
        await stored(raw, wire.store(0, b"%d" % number, number, times=times))
    assert [one.record.payload for one in await read(raw, 2)] == [b"1", b"5"]
    assert await payloads(witness, 2) == [b"1", b"5"]


@pytest.mark.parametrize("size", [0, 1, 8, 15])
async def test_times_that_are_too_short_end_the_connection(raw: RawClient, size: int) -> None:
    await raw.send(wire.publish(0, bytes(size), 1, flags=wire.DURABLE | wire.TIMES))
    words = await raw.last_words()
    assert words is not None
    assert words[0] == 1


@pytest.mark.parametrize(
    "flags",
    [
        wire.TIMES,
        wire.TIMES | wire.POST,
        wire.DURABLE | wire.POST,
        wire.DURABLE | wire.PIN,
        wire.DURABLE | wire.CONFIRM,
    ],
)
async def test_flags_that_do_not_go_together_are_refused(raw: RawClient, flags: int) -> None:
    """Times are for what is stored, and what is kept is not stored: told, rather than done by half."""
    await raw.send(wire.publish(0, bytes(16), 1, flags=flags))
    words = await raw.last_words()
    assert words is not None
    assert words[0] == 1


@pytest.mark.parametrize(
    "since",
    [
        b"",
        b"\xc1",
        b"\xff" * 20,
        "all",
        ["all"],
        ["all", None, None],
        ["some", None],
        ["time", "now"],
        ["time", None],
        ["time", 1 << 63],
        ["time", (1 << 64) - 1],
        ["ago", -(1 << 63)],
        ["ago", 1.5],
        ["at", None],
        ["at", [["guid", "default"]]],
        ["at", [["guid", "default", -1]]],
        ["at", [[7, "default", 1]]],
        {"all": 1},
        7,
    ],
    ids=repr,
)
async def test_a_since_that_says_nothing_is_refused(raw: RawClient, since: Any) -> None:
    await stored(raw, wire.store(0, b"", 1))
    assert await refused(raw, wire.subscribe(1, 2, "**", since=since)) == 26
    assert len(await read(raw, 1)) == 1  # the id is free, and the connection as good as before


async def test_since_from_beyond_the_end_is_refused(raw: RawClient) -> None:
    await stored(raw, wire.store(0, b"old", 1))
    guid = raw.welcome["guid"]
    for beyond in (2, (1 << 63) - 1):
        assert await refused(raw, wire.subscribe(1, 2, "**", since=("at", [(guid, "default", beyond)]))) == OUT_OF_RANGE
    await read(raw, 0, since=("at", [(guid, "default", 1), (guid, "gone", 7), ("0" * 32, "default", 7)]))


async def test_who_comes_back_from_beyond_the_end_begins_at_the_end(raw: RawClient) -> None:
    """The broker has lost its end, and it is not the fault of who has seen that."""
    await stored(raw, wire.store(0, b"old", 1))
    guid = raw.welcome["guid"]
    await read(raw, 0, since=("back", ([(guid, "default", (1 << 63) - 1)], "all", None)))
    await raw.send(wire.store(0, b"new", 2))
    assert (await raw.expect(wire.RECORD)).record.payload == b"new"


async def test_since_far_in_the_past_and_in_the_future(raw: RawClient) -> None:
    await stored(raw, wire.store(0, b"old", 1))
    for sub, since in enumerate((("time", -(1 << 62)), ("ago", 1 << 62), ("time", 0)), 1):
        assert len(await read(raw, 1, sub, since)) == 1
        await raw.send(wire.unsubscribe(sub, 2000))
        assert (await raw.expect(wire.RESULT)).code == 0
    await read(raw, 0, 4, ("time", 1 << 62))


async def test_since_in_a_group_is_refused(raw: RawClient) -> None:
    """One of a group gets each message: nobody could say who of it missed what."""
    assert await refused(raw, wire.subscribe(1, 1, "t", group="g", since=("all", None))) == 26


async def test_a_duplicate_id_does_not_disturb_the_first(raw: RawClient) -> None:
    await stored(raw, wire.store(0, b"1", 1))
    assert len(await read(raw, 1)) == 1
    assert await refused(raw, wire.subscribe(1, 5, "**", since=("all", None))) == 31
    await raw.send(wire.store(0, b"2", 2))
    assert (await raw.expect(wire.RECORD)).record.payload == b"2"
    assert (await raw.expect(wire.STORED)).number == 2
    await raw.send(wire.ping(1))
    assert await raw.expect(wire.PONG) == 1


async def test_who_leaves_in_the_middle_of_it_all(net: Net, witness: busway.Subscription) -> None:
    """Durable publishes whose client is gone before they are answered are stored all the same."""
    assert net.server is not None
    for session in range(1, 21):
        client = await RawClient.welcomed(net.server.addresses[0], session)
        await client.send(
            wire.topic(0, "t"),
            wire.subscribe(1, 1, "**", since=("all", None)),
            *(wire.store(0, b"%d" % number, number) for number in range(2, 12)),
        )
        client.writer.close() if session % 2 else client.abort()
    async with await RawClient.welcomed(net.server.addresses[0], 99) as probe:
        await probe.send(wire.topic(0, "t"))
        last = await stored(probe, wire.store(0, b"end", 1))
        async with asyncio.timeout(PATIENCE):
            while (message := await witness.recv()).payload != b"end":
                pass
        assert message.sequence == last.sequence == last.offset + 1
