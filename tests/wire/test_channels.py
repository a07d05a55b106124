"""Channels for a client that knows only docs/protocol.md: refused frames get an error, and other clients continue."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import busway
from busway.broker.channels import manager
from busway.errors import Code
from tests.support import wire
from tests.support.net import PATIENCE, Net
from tests.support.wire import RawClient

ASKED = {"stream": "default", "channel": "c", "window": 0}


@pytest.fixture
async def witness(net: Net) -> AsyncIterator[busway.Channel]:
    """Somebody else, who consumes a channel of the same stream and must not be disturbed."""
    bus = await net.connect("witness")
    await bus.publish_many("t", [b"%d" % number for number in range(10)], durable=True)
    async with bus.channel("default", "witness", window=0) as channel:
        yield channel
        got = await channel.take(10, timeout=PATIENCE, whole=True)
        assert [message.offset for message in got] == list(range(10))
        await channel.ack(got)
        assert channel.lost == 0
    assert net.server is not None
    assert net.server.stats()["errors"] == 0


@pytest.fixture
async def raw(net: Net, witness: busway.Channel) -> AsyncIterator[RawClient]:
    assert net.server is not None
    async with await RawClient.welcomed(net.server.addresses[0], 0xABCD, "raw") as client:
        yield client


@pytest.fixture
async def joined(raw: RawClient) -> RawClient:
    """One that consumes the channel c as number 7."""
    assert await result(raw, wire.channel(7, 1, ASKED)) == (0, 1, 0, "")
    return raw


async def result(raw: RawClient, frame: bytes) -> wire.Result:
    await raw.send(frame)
    found: wire.Result = await raw.expect(wire.RESULT)
    return found


async def records(raw: RawClient, count: int) -> list[wire.Handed]:
    return [await raw.expect(wire.RECORD) for _ in range(count)]


async def test_take_and_acknowledge(joined: RawClient) -> None:
    await joined.send(wire.take(7, 2, 3))
    got = await records(joined, 3)
    assert [(one.ids, one.deliveries, one.flags, one.record.offset) for one in got] == [
        ((7,), 1, wire.OF_CHANNEL, offset) for offset in range(3)
    ]
    assert all(one.record.sound for one in got)
    assert await joined.expect(wire.RESULT) == (0, 2, 3, "")
    assert await result(joined, wire.ack(7, 3, (0, 2), (2, 1, 1, 0))) == (0, 3, 3, "")
    await joined.send(wire.take(7, 4, 2))
    assert [(one.record.offset, one.deliveries) for one in await records(joined, 2)] == [(2, 2), (3, 1)]
    assert (await joined.expect(wire.RESULT)).value == 2
    assert (await result(joined, wire.unchannel(7, 5))).code == 0
    assert (await result(joined, wire.channel(7, 6, ASKED))).value == 2  # everything before it is done


async def test_a_window(raw: RawClient) -> None:
    await raw.send(wire.channel(1, 1, {**ASKED, "window": 4, "start": ["offset", 5]}))
    assert await raw.expect(wire.RESULT) == (0, 1, 5, "")
    assert [one.record.offset for one in await records(raw, 4)] == [5, 6, 7, 8]
    await raw.send(wire.ack(1, 2, (6, 1)))
    # Whether the message or the answer comes first is not promised.
    kinds = set()
    while len(kinds) < 2:
        frame = await raw.frame()
        if frame.kind in (wire.RECORD, wire.RESULT):
            kinds.add(frame.kind)


async def test_a_consumer_returns_messages_and_changes_its_window(raw: RawClient) -> None:
    await raw.send(wire.channel(1, 1, {**ASKED, "window": 4}))
    assert await raw.expect(wire.RESULT) == (0, 1, 0, "")
    assert [one.record.offset for one in await records(raw, 4)] == [0, 1, 2, 3]
    closed = {**ASKED, "window": 0, "again": True, "settings": {"lease": 7.0}}
    assert (await result(raw, wire.channel(1, 2, closed))).code == 0
    assert await result(raw, wire.ack(1, 3, (1, 3, 6))) == (0, 3, 3, "")
    assert await result(raw, wire.ack(1, 4, (0, 1))) == (0, 4, 1, "")  # nothing was delivered meanwhile
    for other in ({**closed, "channel": "d"}, {**closed, "again": False}):
        assert (await result(raw, wire.channel(1, 5, other))).code == Code.DUPLICATE
    await raw.send(wire.channel(1, 6, {**closed, "window": 2}))
    assert [(one.record.offset, one.deliveries) for one in await records(raw, 2)] == [(1, 1), (2, 1)]


async def test_takes_that_wait_and_are_called_off(joined: RawClient) -> None:
    await joined.send(wire.take(7, 2, 10))
    await records(joined, 10)
    assert (await joined.expect(wire.RESULT)).value == 10
    assert await result(joined, wire.take(7, 3, 5)) == (0, 3, 0, "")  # nothing more is there now
    await joined.send(wire.take(7, 4, 5, 3_600_000), wire.untake(7, 5, 4))
    assert await joined.expect(wire.RESULT) == (0, 4, 0, "")
    await joined.send(wire.untake(7, 6, 4), wire.untake(7, 7, 999))  # not there (any more): nothing to say
    assert await result(joined, wire.take(7, 8, 5, 20)) == (0, 8, 0, "")


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([(5, 1)], [[5, 1]]),  # never handed out
        ([(0, 4)], [[3, 1]]),
        ([(2**64 - 1, 2**32 - 1)], [[2**64 - 1, 2**32 - 1]]),
        ([(0, 2**32 - 1)], [[3, 2**32 - 4]]),
        ([(0, 1), (0, 1)], []),  # named twice, of which one is too late
        ([(1, 1, 2), (100, 1, 1, 5), (7, 1, 3)], [[100, 1], [7, 1]]),
        ([(1, 0)], []),
    ],
)
async def test_acknowledgements_of_what_it_does_not_have(
    joined: RawClient, entries: list[tuple[int, ...]], left: list[list[int]]
) -> None:
    await joined.send(wire.take(7, 2, 3))
    await records(joined, 3)
    await joined.expect(wire.RESULT)
    answer = await result(joined, wire.ack(7, 3, *entries))
    assert answer.code == (Code.ACK_LATE if left else Code.OK)
    if left:
        assert msgspec.json.decode(answer.text) == left
    await result(joined, wire.ack(7, 4, (0, 3)))
    assert (await result(joined, wire.unchannel(7, 5))).code == 0
    assert (await result(joined, wire.channel(7, 6, ASKED))).value == 3


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"\x80",
        b"\xc1",
        b"\x81\xa1",
        b"\xff" * 1000,
        [],
        {"stream": "default"},
        {"stream": "default", "channel": 5},
        {**ASKED, "window": -1},
        {**ASKED, "window": 65_537},
        {**ASKED, "window": 2**63},
        {**ASKED, "colour": "red"},
        {**ASKED, "settings": {"colour": "red"}},
        {**ASKED, "settings": {"lease": float("nan")}},
        {**ASKED, "settings": {"lease": "long"}},
        {**ASKED, "settings": {"max_deliveries": -1}},
        {**ASKED, "settings": {"topic": "a//b"}},
        {**ASKED, "settings": {"where": b"\xc1"}},
        {**ASKED, "settings": {"where": "text"}},
        {**ASKED, "settings": {"dead_letter": "$bus/info"}},
        {**ASKED, "settings": {"dead_letter": "{stream.config}"}},
        {**ASKED, "settings": {"dead_letter": "{0}"}},
        {**ASKED, "settings": {"dead_letter": "{stream:>999999999}"}},
        {**ASKED, "settings": {"dead_letter": "a/**"}},
        {**ASKED, "start": "first"},
        {**ASKED, "start": ["soon", None]},
        {**ASKED, "start": ["offset", -1]},
        {**ASKED, "start": ["offset", 11]},
        {**ASKED, "start": ["offset", 2**64 - 1]},
        {**ASKED, "start": ["message", [0]]},
        {**ASKED, "start": ["message", [0, "0" * 32]]},
        {**ASKED, "start": ["time", "now"]},
        {**ASKED, "channel": ""},
        {**ASKED, "channel": "a/b"},
        {**ASKED, "channel": "../../etc"},
        {**ASKED, "stream": "nobody"},
        {**ASKED, "create": False},
    ],
)
async def test_a_channel_that_is_none(raw: RawClient, asked: Any) -> None:
    answer = await result(raw, wire.channel(7, 1, asked))
    assert answer.code >= 20
    assert answer.text
    assert (await result(raw, wire.take(7, 2, 1))).code == Code.NO_CHANNEL
    assert (await result(raw, wire.channel(7, 3, ASKED))).code == 0


async def test_times_far_away(raw: RawClient) -> None:
    for number, (start, floor) in enumerate(
        [
            (["time", -(2**63)], 0),
            (["time", 2**63 - 1], 10),
            (["time", 2**64 - 1], 10),
            (["ago", 2**63 - 1], 0),
            (["ago", 2**64 - 1], 0),
            (["ago", -(2**62)], 10),
            (["ago", -(2**63)], 10),
        ]
    ):
        asked = {**ASKED, "channel": f"c{number}", "start": start}
        answer = await result(raw, wire.channel(number + 1, number + 1, asked))
        assert (answer.code, answer.value) == (0, floor), start


@pytest.mark.parametrize(
    "frame",
    [
        wire.channel(7, 2, b"", kind=wire.TAKE),
        wire.channel(7, 2, b"\0" * 7, kind=wire.TAKE),
        wire.channel(7, 2, b"\0" * 9, kind=wire.TAKE),
        wire.take(7, 2, 0),
        wire.take(7, 2, 65_537),
        wire.take(7, 2, 0, whole=True),
        wire.take(7, 2, 2**31 - 1, 2**32 - 1),
        wire.channel(7, 2, b"", kind=wire.ACK),
        wire.channel(7, 2, b"", kind=wire.NACK),
        wire.channel(7, 2, msgspec.msgpack.encode({"spans": []}), kind=wire.NACK),
        wire.channel(7, 2, msgspec.msgpack.encode({"spans": [[0, 1]], "delay": -1}), kind=wire.NACK),
        wire.channel(
            7, 2, msgspec.msgpack.encode({"spans": [[0, 1]], "failure": {"reason": "x" * 1025}}), kind=wire.NACK
        ),
        wire.channel(7, 2, b"\0" * 19, kind=wire.ACK),
        wire.channel(7, 2, b"\0" * 21, kind=wire.ACK),
        wire.ack(7, 2, (0, 1, 6)),
        wire.ack(7, 2, (0, 0, 4), (0, 1, 0)),
        wire.ack(7, 2, (0, 1, 255)),
        wire.ack(7, 2, *[(0, 1)] * 65_537),
        wire.take(8, 2, 1),
        wire.ack(8, 2, (0, 1)),
        wire.take(2**32 - 1, 2, 1),
        wire.channel(7, 2, ASKED),  # that number is in use
    ],
)
async def test_frames_that_are_none(joined: RawClient, frame: bytes) -> None:
    answer = await result(joined, frame)
    assert (answer.code >= 20, answer.number) == (True, 2)
    assert answer.text
    await joined.send(wire.take(7, 3, 1))
    assert [one.record.offset for one in await records(joined, 1)] == [0]
    assert (await joined.expect(wire.RESULT)).code == 0


async def test_more_entries_than_are_of_use(joined: RawClient) -> None:
    answer = await result(joined, wire.ack(7, 2, *[(offset * 2, 1) for offset in range(65_536)]))
    assert answer.code == Code.ACK_LATE
    assert len(msgspec.json.decode(answer.text)) == 65_536


async def test_a_renewal_is_answered_with_the_lease_and_what_is_held(joined: RawClient) -> None:
    assert (await result(joined, wire.ack(7, 2, (0, 0, 4)))).value == 30_000 << 32
    await joined.send(wire.take(7, 3, 1))
    assert [one.record.offset for one in await records(joined, 1)] == [0]
    assert (await joined.expect(wire.RESULT)).code == 0
    assert (await result(joined, wire.ack(7, 4, (0, 0, 4)))).value == 30_000 << 32 | 1
    answer = await result(joined, wire.ack(7, 5, (0, 1, 5), (7, 2, 5)))
    assert (answer.code, answer.value, answer.text) == (Code.ACK_LATE, 1, "[[7,2]]")


async def test_leaving_what_it_does_not_have(joined: RawClient) -> None:
    assert (await result(joined, wire.unchannel(99, 2))).code == 0
    assert (await result(joined, wire.unchannel(7, 3))).code == 0
    assert (await result(joined, wire.unchannel(7, 4))).code == 0


async def test_leaving_before_it_has_begun(raw: RawClient, net: Net) -> None:
    """Both frames at once: in the end it does not consume."""
    await raw.send(wire.channel(7, 1, ASKED), wire.unchannel(7, 2))
    answers = [await raw.expect(wire.RESULT) for _ in range(2)]
    assert {one.number for one in answers} == {1, 2}
    bus = await net.connect()
    (found,) = [one for one in await bus.channels("default") if one.name == "c"] or [None]
    assert found is None or found.consumers == 0


async def test_as_many_takes_as_may_wait(net: Net) -> None:
    server = await net.serve(pending=10)
    async with await RawClient.welcomed(server.addresses[0], 5) as raw:
        assert (await result(raw, wire.channel(7, 1, ASKED))).code == 0
        await raw.send(*(wire.take(7, number, 1, 3_600_000) for number in range(2, 13)))
        answer = await raw.expect(wire.RESULT)
        assert (answer.code, answer.number) == (Code.TOO_MANY_PENDING, 12)


async def test_as_many_channels_as_a_connection_may_have(net: Net) -> None:
    server = await net.serve(subscriptions=3)
    async with await RawClient.welcomed(server.addresses[0], 5) as raw:
        for number in range(1, 4):
            assert (await result(raw, wire.channel(number, number, {**ASKED, "channel": f"c{number}"}))).code == 0
        assert (await result(raw, wire.channel(9, 9, ASKED))).code == Code.TOO_MANY_SUBSCRIPTIONS


async def test_more_at_once_than_a_connection_may_have(net: Net) -> None:
    """Those that are about to begin count too."""
    server = await net.serve(subscriptions=3)
    async with await RawClient.welcomed(server.addresses[0], 5) as raw:
        await raw.send(*(wire.channel(number, number, {**ASKED, "channel": f"c{number}"}) for number in range(1, 11)))
        codes = [(await raw.expect(wire.RESULT)).code for _ in range(10)]
        assert sorted(codes) == [0] * 3 + [Code.TOO_MANY_SUBSCRIPTIONS] * 7


async def test_as_many_channels_as_a_stream_may_have(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "CHANNELS", 3)
    server = await net.serve()
    async with await RawClient.welcomed(server.addresses[0], 5) as raw:
        for number in range(1, 4):
            assert (await result(raw, wire.channel(number, number, {**ASKED, "channel": f"c{number}"}))).code == 0
        assert (await result(raw, wire.channel(9, 9, ASKED))).code == Code.TOO_MANY_SUBSCRIPTIONS
        assert (await result(raw, wire.channel(9, 10, {**ASKED, "channel": "c1"}))).code == 0


async def test_one_bad_entry_refuses_the_whole_frame(joined: RawClient) -> None:
    await joined.send(wire.take(7, 2, 3))
    await records(joined, 3)
    await joined.expect(wire.RESULT)
    assert (await result(joined, wire.ack(7, 3, (0, 2), (2, 1, 4)))).code == Code.INVALID_SETTING
    assert await result(joined, wire.ack(7, 4, (0, 3))) == (0, 4, 3, "")


async def test_one_that_is_back_changes_no_settings(joined: RawClient, net: Net) -> None:
    """With `again` they are for a channel that has to be made."""
    bus = await net.connect()
    settings = {"lease": 5.0}
    asked = {**ASKED, "settings": settings, "again": True}
    assert (await result(joined, wire.channel(8, 2, asked))).code == 0
    assert (await result(joined, wire.channel(9, 3, {**asked, "channel": "new"}))).code == 0
    assert {one.name: one.lease for one in await bus.channels("default")} == {"c": 30, "new": 5, "witness": 30}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"topic": "a//b"}, Code.INVALID_TOPIC),
        ({"topic": "re:("}, Code.INVALID_PATTERN),
        ({"where": b"\xc1"}, Code.INVALID_RULE),
        ({"dead_letter": "a//b"}, Code.INVALID_TOPIC),
        ({"dead_letter": "$bus/info"}, Code.RESERVED),
        ({"dead_letter": "{other}"}, Code.INVALID_SETTING),
        ({"paused": "yes"}, Code.INVALID_SETTING),
    ],
)
async def test_settings_that_are_refused(joined: RawClient, settings: dict[str, Any], code: Code) -> None:
    assert (await result(joined, wire.channel(8, 2, {**ASKED, "settings": settings}))).code == code
    assert (await result(joined, wire.take(8, 3, 1))).code == Code.NO_CHANNEL


@pytest.mark.parametrize("kind", [wire.CHANNEL, wire.UNCHANNEL, wire.TAKE, wire.ACK])
@pytest.mark.parametrize("bad", ["short", "flag"])
async def test_a_frame_that_can_not_be_read_ends_its_connection_alone(joined: RawClient, kind: int, bad: str) -> None:
    """The witness goes on, and gets all."""
    await joined.send(wire.frame(kind, bytes(13 if bad == "short" else 14), flags=bad == "flag"))
    code, text = await joined.expect(wire.CLOSE)
    assert (code, bool(text)) == (Code.PROTOCOL, True)


async def test_the_end_is_told(joined: RawClient, net: Net) -> None:
    bus = await net.connect()
    await joined.send(wire.take(7, 2, 10))
    await records(joined, 10)
    await joined.expect(wire.RESULT)
    await bus.remove_channel("default", "c")
    ended: wire.Ended = await joined.expect(wire.UNCHANNEL)
    assert (ended.code, ended.channel) == (Code.NO_CHANNEL, 7)
    assert ended.text
    assert (await result(joined, wire.ack(7, 3, (0, 1)))).code == Code.NO_CHANNEL
