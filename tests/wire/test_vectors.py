"""The test vectors of docs/protocol.md against the engine and the session, byte by byte."""

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from busway import _core, errors
from busway.authority.login import Claim, context
from busway.authority.passwords import Cost, prove
from busway.broker.channels import frames
from busway.client.services.errors import described
from busway.fields import compile_where, encode_fields
from busway.positions import Position, Since, encode_since
from tests.support import page, wire
from tests.support.pair import Hub, Raw
from tests.support.vectors import VECTORS, session

ALICE, BOB = 0x36DB1ADC807AC50E, 0x816B9E7C25D559C5


def test_every_frame_kind_has_vectors_in_its_directions() -> None:
    seen = {(wire.frames(vector.data)[0].kind, vector.way) for vector in VECTORS.values()}
    wanted = set()
    for kind, (_, direction) in page.kinds().items():
        wanted |= {
            (kind, way)
            for way in {"both": "→←", "client → broker": "→", "broker → client": "←", "nodes": ""}[direction]
        }
    assert wanted - seen == set()
    assert seen - wanted == set()


def test_the_kinds_of_the_page_are_those_of_the_tests() -> None:
    assert {kind: name for kind, (name, _) in page.kinds().items()} == {kind: wire.NAMES[kind] for kind in page.kinds()}


def test_the_error_table_of_the_page_is_the_one_of_the_code() -> None:
    assert page.codes() == _core.ERRORS
    assert {code.name: (code.value, code.survives) for code in errors.Code} == page.codes()
    for name, (code, _) in page.codes().items():
        error = errors.from_code(code, "why")
        assert error.code == code, name
        assert error.reason == "why"
        assert name == "OK" or type(error) is not errors.BusError, f"{name} has no class of its own"


def same(vector: page.Vector, data: bytes) -> None:
    """The bytes are those of the vector; a free text at the end is left out."""
    if vector.text_free:
        (got,), (expected,) = wire.frames(data), wire.frames(vector.data)
        head = 18 if got.kind == wire.RESULT else 10
        assert (got.kind, got.flags, got.rest[:head]) == (expected.kind, expected.flags, expected.rest)
        got.rest[head:].decode()
    else:
        assert data.hex() == vector.data.hex(), vector.name


def cut_up(data: bytes) -> list[bytes]:
    edges = list(wire.boundaries(data))
    return [data[a:b] for a, b in pairwise(edges)]


class Exchange:
    """Plays the scripted exchange of the page; the clients' bytes are cut as `cut` says."""

    def __init__(self, cut: Callable[[bytes], list[bytes]]) -> None:
        self.hub = Hub()
        self.cut = cut
        self.conns = {"alice": self.hub.connect(), "bob": self.hub.connect()}
        self.hub.welcome = lambda client: wire.frames(VECTORS["welcome-alice" if client == 1 else "welcome-bob"].data)[
            0
        ].rest[2:]

    def play(self) -> None:
        waiting: dict[str, list[bytes]] = {"alice": [], "bob": []}
        for step in page.exchange():
            expected = [VECTORS[name] for name in step.frames]
            assert all(vector.way == step.way for vector in expected), step
            if step.way == "→":
                assert not any(waiting.values()), f"not on the page, before {step}: {waiting}"
                for piece in self.cut(b"".join(vector.data for vector in expected)):
                    self.hub.feed(self.conns[step.client], piece)
                for client, conn in self.conns.items():
                    waiting[client] += cut_up(self.hub.take(conn))
            else:
                got = [waiting[step.client].pop(0) for _ in expected if waiting[step.client]]
                assert len(got) == len(expected), (step, [wire.frames(one) for one in got])
                for vector, data in zip(expected, got, strict=True):
                    same(vector, data)
        assert not any(waiting.values())
        assert not self.hub.failed
        assert self.hub.closed == {self.conns["bob"]: (9, "bye")}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 16, 17, 1 << 20])
def test_the_exchange_with_the_engine(size: int) -> None:
    Exchange(lambda data: [data[at : at + size] for at in range(0, len(data), size)]).play()


def test_the_exchange_with_every_single_cut() -> None:
    longest = max(sum(len(VECTORS[name].data) for name in step.frames) for step in page.exchange())
    for at in range(1, longest):
        Exchange(lambda data, at=at: [part for part in (data[:at], data[at:]) if part]).play()  # type: ignore[misc]


# ---------------------------------------------------------------- what the session writes


def map_of(name: str) -> bytes:
    return wire.frames(VECTORS[name].data)[0].rest[6:]


def written(made: _core.Session) -> bytes:
    view = made.take()
    return b"" if view is None else bytes(view)


def proof_of(name: str) -> bytes:
    """The map of the LOGIN that answers this CHALLENGE with the password of the page."""
    challenge = msgspec.msgpack.decode(VECTORS[name].data[8:])
    nonce, cost = challenge.pop("nonce"), Cost(**challenge)
    claim = Claim("alice", "password", bytes(range(0x30, 0x40)))
    proof, _ = prove("secret", cost, context(claim, ALICE, nonce))
    return msgspec.msgpack.encode({"proof": proof})


def timeless(data: bytes) -> bytes:
    """The frames with the time of every message as on the page."""
    out = []
    for one in cut_up(data):
        if one[4] in (wire.PUBLISH, wire.PUSH, wire.REQUEST):
            (when,) = struct.unpack_from("<q", one, 16)
            assert when > 1_700_000_000_000_000_000
            one = one[:16] + struct.pack("<q", 1_700_000_000_000_000_000) + one[24:]  # noqa: PLW2901
        out.append(one)
    return b"".join(out)


def sends_topic_first(kind: int, topic: str, payload: bytes, **more: Any) -> Callable[[_core.Session], Any]:
    def write(made: _core.Session) -> None:
        if topic == "sum":
            made.send(wire.PUBLISH, "price/eth", b"")  # takes slot 0
            made.take()
        return made.send(kind, topic, payload, **more)

    return write


VENUE = encode_fields({"venue": "krk"})
TIME, HOUR = 1_700_000_000_000_000_000, 3600 * 10**9
ORDERS = bytes(range(16)).hex(), "orders"


def subscribes_since(since: Since) -> Callable[[_core.Session], Any]:
    return lambda made: made.subscribe(1, "price/*", flags=wire.SINCE, since=encode_since(since))


WRITES: dict[tuple[str, ...], tuple[int, int, Callable[[_core.Session], Any]]] = {
    # names -> (session, numbers taken before, the call)
    ("hello-alice",): (ALICE, 0, lambda made: made.hello(map_of("hello-alice"))),
    ("hello-bob",): (BOB, 0, lambda made: made.hello(map_of("hello-bob"))),
    ("login",): (ALICE, 0, lambda made: made.login(proof_of("challenge"))),
    ("subscribe",): (ALICE, 0, lambda made: made.subscribe(1, "price/*")),
    ("subscribe-all",): (ALICE, 1, lambda made: made.subscribe(2, "re:price/.+", group="desk", flags=1, policy=1)),
    ("topic-eth", "publish"): (BOB, 0, sends_topic_first(wire.PUBLISH, "price/eth", b"3012.5", flags=wire.CONFIRM)),
    ("serve",): (ALICE, 2, lambda made: made.serve(1, "sum")),
    ("topic-sum", "request"): (BOB, 1, sends_topic_first(wire.REQUEST, "sum", b"[1,2]", aux=5000)),
    ("reply",): (ALICE, 0, lambda made: made.reply(1, b"3")),
    ("reply-error",): (
        ALICE,
        0,
        lambda made: made.reply(2, "no numbers", code=43, fields=described("no_numbers", None, "sum")),
    ),
    ("cancel",): (BOB, 0, lambda made: made.cancel(5)),
    ("unserve",): (ALICE, 3, lambda made: made.unserve(1)),
    ("topic-eth", "push"): (BOB, 6, sends_topic_first(wire.PUSH, "price/eth", b"job")),
    ("unsubscribe",): (ALICE, 4, lambda made: made.unsubscribe(1)),
    ("subscribe-rules",): (
        ALICE,
        0,
        lambda made: made.subscribe(
            3, "proc/*", flags=wire.WATCH | wire.LISTEN, rules=compile_where({"venue": "krk"}, None).wire
        ),
    ),
    ("topic-eth", "post"): (
        BOB,
        0,
        sends_topic_first(wire.PUBLISH, "price/eth", b"up", flags=wire.CONFIRM | wire.POST, fields=VENUE),
    ),
    ("topic-eth", "unpin"): (
        BOB,
        0,
        sends_topic_first(wire.PUBLISH, "price/eth", b"", flags=wire.CONFIRM | wire.PIN | wire.UNKEEP, fields=VENUE),
    ),
    ("topic-eth", "publish-durable"): (
        BOB,
        0,
        sends_topic_first(wire.PUBLISH, "price/eth", b"3012.5", flags=wire.DURABLE),
    ),
    ("topic-eth", "publish-times"): (
        BOB,
        1,
        sends_topic_first(
            wire.PUBLISH,
            "price/eth",
            b"3013",
            flags=wire.DURABLE,
            fields=VENUE,
            times=(TIME + HOUR, TIME + 10**9),
        ),
    ),
    ("subscribe-since",): (ALICE, 0, subscribes_since("all")),
    ("subscribe-since-time",): (ALICE, 0, subscribes_since(datetime.fromtimestamp(1_700_000_000, UTC))),
    ("subscribe-since-ago",): (ALICE, 0, subscribes_since("1h")),
    ("subscribe-since-at",): (ALICE, 0, subscribes_since(Position(*ORDERS, 7))),
    ("serve-shared",): (ALICE, 0, lambda made: made.serve(1, "sum", wire.SHARED | wire.ASKS)),
    ("topic-sum", "request-gather"): (
        BOB,
        0,
        sends_topic_first(wire.REQUEST, "sum", b"[1,2]", flags=wire.GATHER, aux=2000, each=50),
    ),
    ("topic-eth", "publish-local"): (BOB, 0, sends_topic_first(wire.PUBLISH, "price/eth", b"3012.5", each=1)),
    ("topic-sum", "request-remote"): (BOB, 0, sends_topic_first(wire.REQUEST, "sum", b"[1,2]", flags=wire.REMOTE)),
    ("subscribe-wait",): (
        ALICE,
        0,
        lambda made: made.subscribe(1, "price/*", flags=wire.SUBSCRIBE_REMOTE | wire.WAIT),
    ),
    ("serve-wait",): (ALICE, 0, lambda made: made.serve(1, "sum", wire.LOCAL | wire.WAIT)),
    ("accept-ask",): (ALICE, 0, lambda made: made.accept((1 << 63) | 1, 0)),
    ("reply-part",): (ALICE, 0, lambda made: made.reply(1, b"3", flags=wire.PARTIAL)),
    ("hold",): (ALICE, 0, lambda made: made.hold(1, True, 5)),
    ("hold-end",): (ALICE, 0, lambda made: made.hold(1, False, 6)),
    ("ping",): (BOB, 0, lambda made: made.ping(0x1122334455667788)),
    ("close",): (BOB, 0, lambda made: made.close(9, "bye")),
}


@pytest.mark.parametrize("names", WRITES, ids=" ".join)
def test_what_the_session_writes(names: tuple[str, ...]) -> None:
    number, taken, write = WRITES[names]
    made = session(number, taken)
    write(made)
    assert timeless(written(made)).hex() == b"".join(VECTORS[name].data for name in names).hex()


def test_the_hot_path_writes_the_same_frames_as_send() -> None:
    made = session(BOB)
    assert made.publish("price/eth", b"3012.5") is not None
    assert made.publish_many("price/eth", [b"3013", "3014"], 0) == (2, 2)
    expected = wire.topic(0, "price/eth")
    for number, payload in enumerate([b"3012.5", b"3013", b"3014"], start=1):
        expected += wire.publish(0, payload, number, time=1_700_000_000_000_000_000)
    assert timeless(written(made)).hex() == expected.hex()


def test_an_awaited_publish_is_already_done() -> None:
    made = session(BOB)
    awaitable = made.publish("t", b"x")
    assert awaitable is not None
    steps = awaitable.__await__()
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value is None


# ---------------------------------------------------------------- what the session reads


def reading() -> tuple[_core.Session, dict[int, _core.Inbox]]:
    """Alice with her subscriptions, and the slots of the page known."""
    made = session(ALICE)
    inboxes = {sub: made.inbox(sub, messages=100, bytes=1 << 20, policy=0) for sub in (1, 2)}
    slots = b"".join(VECTORS[name].data for name in ("topic-eth-down", "sender-bob", "topic-sum-down", "stream"))
    assert not made.feed(slots, len(slots))
    return made, inboxes


def feed(made: _core.Session, name: str) -> list[tuple[Any, ...]]:
    data = VECTORS[name].data
    return made.feed(data, len(data)) or []


TOLD = msgspec.msgpack.encode([["west", "tcp://10.0.0.1:7420"], ["east", "tcp://10.0.0.2:7420"]])
READS: dict[str, tuple[Any, ...]] = {
    "welcome-alice": (_core.EVENT_WELCOME, 1),
    "challenge": (_core.EVENT_CHALLENGE, VECTORS["challenge"].data[8:]),
    "result-1": (_core.EVENT_RESULT, 1, 0, 0, ""),
    "result-confirm": (_core.EVENT_RESULT, 1, 0, 1, ""),
    "result-no-consumer": (_core.EVENT_RESULT, 8, 44, 0, ""),
    "pong": (_core.EVENT_PONG, 0x1122334455667788),
    "missed": (_core.EVENT_MISSED, 2, 1000),
    "away": (_core.EVENT_AWAY,),
    "servers": (_core.EVENT_SERVERS, TOLD, False),
    "servers-apart": (_core.EVENT_SERVERS, TOLD, True),
    "flow-stop": (_core.EVENT_FLOW, True),
    "flow-go": (_core.EVENT_FLOW, False),
    "close-down": (_core.EVENT_CLOSE, 9, "stopping"),
    "stored": (_core.EVENT_STORED, 1, 2, ORDERS, 7, 3, False),
    "stored-again": (_core.EVENT_STORED, 1, 1, ORDERS, 7, 3, True),
    "gap-begin": (_core.EVENT_GAP, 1, ORDERS, 7, 7),
    "gap": (_core.EVENT_GAP, 1, ORDERS, 3, 7),
}


def test_a_stream_that_is_named_again_has_another_level() -> None:
    made, _ = reading()
    ((*_, before, _, _, _),) = feed(made, "stored")
    feed(made, "stream-level")
    ((*_, after, _, _, _),) = feed(made, "stored-again")
    assert before == after == ORDERS
    assert (before.safety, after.safety) == (None, "written")


@pytest.mark.parametrize("name", READS)
def test_what_the_session_reads(name: str) -> None:
    made, _ = reading()
    (event,) = feed(made, name)
    expected = READS[name]
    assert event[: len(expected)] == expected
    if name == "welcome-alice":
        assert bytes(event[2]) == wire.frames(VECTORS[name].data)[0].rest[2:]


@pytest.mark.parametrize(
    ("name", "number", "code", "payload"),
    [("reply-down", 3, 0, b"3"), ("reply-error-down", 4, 43, b"no numbers"), ("reply-nobody", 6, 40, b"")],
)
def test_replies(name: str, number: int, code: int, payload: bytes) -> None:
    made = session(BOB, number - 1)
    assert made.send(wire.REQUEST, "sum", b"") == number
    (event,) = feed(made, name)
    assert event[:3] == (_core.EVENT_REPLY, number, code)
    assert (event[4].payload, event[4].kind, event[4].topic, event[4].last) == (payload, "reply", "sum", True)
    assert event[4].fields == ({"code": "no_numbers"} if code == 43 else {})


def test_partial_replies_end_with_one_that_is_not() -> None:
    made = session(BOB, 1)
    assert made.send(wire.REQUEST, "sum", b"", flags=wire.GATHER) == 2
    for _ in range(2):
        (event,) = feed(made, "reply-part-down")
        assert event[:4] == (_core.EVENT_REPLY, 2, 0, wire.FIELDS | wire.PARTIAL)
        assert (event[4].payload, event[4].sender, event[4].fields, event[4].last) == (b"3", "alice", {}, False)
    (event,) = feed(made, "reply-end-down")
    assert event[:4] == (_core.EVENT_REPLY, 2, 0, wire.END)
    assert event[4].last
    assert feed(made, "reply-part-down") == []


def test_an_ask() -> None:
    made, _ = reading()
    (event,) = feed(made, "ask")
    assert event[:3] == (_core.EVENT_ASK, 1, (1 << 63) | 1)
    assert (event[3].topic, event[3].payload, event[3].kind) == ("sum", b"[1,2]", "request")


@pytest.mark.parametrize(
    ("name", "kind", "kept"),
    [("deliver-kept", "post", True), ("deliver-withdrawn", "withdrawn", False), ("deliver-copy", "request", False)],
)
def test_marks_of_deliveries(name: str, kind: str, kept: bool) -> None:
    made, inboxes = reading()
    feed(made, name)
    (message,) = inboxes[1].take(10)
    assert (message.kind, message.kept) == (kind, kept)
    assert message.fields == ({} if name == "deliver-copy" else {"venue": "krk"})


def kept_once(made: _core.Session, inbox: _core.Inbox, number: int, handed: list[str]) -> list[tuple[str, bool]]:
    """What comes of a SUBSCRIBE during which this is handed over."""
    assert made.subscribe(1, "price/*", flags=wire.WATCH, notify=True) == number
    for name in handed:
        feed(made, name)
    result = wire.frame(wire.RESULT, struct.pack("<HQQ", 0, number, len(handed)))
    made.feed(result, len(result))
    return [(message.kind, message.kept) for message in inbox.take(10)]


def test_coming_back_repeats_no_kept_message_and_hides_no_withdrawal() -> None:
    made, inboxes = reading()
    assert kept_once(made, inboxes[1], 1, ["deliver-kept"]) == [("post", True), ("notify", False)]
    assert kept_once(made, inboxes[1], 2, ["deliver-kept"]) == [("notify", False)]
    assert kept_once(made, inboxes[1], 3, []) == [("notify", False)]
    assert made.withdraw_missing(1)
    assert [(message.kind, message.kept) for message in inboxes[1].take(10)] == [("withdrawn", False)]
    assert not made.withdraw_missing(1)
    assert kept_once(made, inboxes[1], 4, ["deliver-kept"]) == [("post", True), ("notify", False)]
    feed(made, "deliver-withdrawn")
    assert [message.kind for message in inboxes[1].take(10)] == ["withdrawn"]
    assert kept_once(made, inboxes[1], 5, []) == [("notify", False)]


def test_a_reply_that_nobody_waits_for_is_dropped() -> None:
    made = session(BOB, 2)
    made.send(wire.REQUEST, "sum", b"")
    made.cancel(3)
    assert feed(made, "reply-down") == []
    assert feed(made, "reply-nobody") == []


@pytest.mark.parametrize(("name", "number", "payload"), [("deliver", 1, b"3012.5"), ("deliver-fields", 2, b"3013")])
def test_deliveries(name: str, number: int, payload: bytes) -> None:
    made, inboxes = reading()
    events = feed(made, name)
    assert sorted(events) == [(_core.EVENT_READY, 1), (_core.EVENT_READY, 2)]
    for inbox in inboxes.values():
        (message,) = inbox.take(10)
        assert (message.topic, message.payload, message.sender, message.kind) == (
            "price/eth",
            payload,
            "bob",
            "publish",
        )
        assert message.id == f"{BOB:016x}{number:016x}"
        assert message.time_ns == 1_700_000_000_000_000_000
        assert message.time.isoformat() == "2023-11-14T22:13:20+00:00"
        assert message.missed == 0
        assert inbox.take(10) == []


@pytest.mark.parametrize(
    ("name", "marks"),
    [("record", (False, True)), ("record-replay", (True, False)), ("record-last", (True, True))],
)
def test_stored_messages(name: str, marks: tuple[bool, bool]) -> None:
    made, inboxes = reading()
    feed(made, name)
    (message,) = inboxes[1].take(10)
    assert len(inboxes[2]) == (name == "record")
    last = name == "record-last"
    assert (message.topic, message.sender, message.kind) == ("price/eth", "bob", "publish")
    assert message.payload == (b"3013" if last else b"3012.5")
    assert message.fields == ({"venue": "krk"} if last else {})
    assert message.position == Position(*ORDERS, 7 + last, 3 + last)
    assert (message.id, message.time_ns, message.stored_ns) == (f"{BOB:016x}{1 + last:016x}", TIME, TIME + 1)
    assert (message.replayed, message.last) == marks


def test_the_session_knows_how_far_a_subscription_has_come() -> None:
    made, _ = reading()
    made.subscribe(1, "price/*", flags=wire.SINCE, since=encode_since("all"))
    assert made.reached(1) == []
    feed(made, "record-replay")
    assert made.reached(1) == [(ORDERS, 8)]
    feed(made, "record-last")
    assert made.reached(1) == [(ORDERS, 9)]


def test_records_of_the_page_are_those_of_the_log() -> None:
    """The layout, the checksum and the mark of a write."""
    log = _core.Log.open(None)
    for name in ("record", "record-last"):
        data = wire.frames(VECTORS[name].data)[0]
        raw = data.rest[10 + 4 * int.from_bytes(data.rest[:2], "little") :]
        record = wire.Record.read(raw)
        assert record.sound
        assert record.write(group=bool(raw[79] & 2)) == raw
        ((offset, sequence, stored, *rest),) = _core.block_records(raw)
        assert (offset, sequence, stored) == record[:3]
        assert record.topic in rest
        row = (
            record.topic, record.payload, record.fields, record.sender, record.session, record.number, record.time,
            record.expires, record.due,
        )  # fmt: skip
        log.append([row], record.stored)
    log.flush()
    _, _, block = log.read(0, 1 << 20)
    size = int.from_bytes(block[:4], "little") + 4
    first, second = wire.Record.read(block[:size]), wire.Record.read(block[size:])
    assert (first.payload, second.payload, second.fields) == (b"3012.5", b"3013", VENUE)
    assert (first.offset, second.offset, first.sound, second.sound) == (0, 1, True, True)


def test_the_frames_of_channels() -> None:
    """What the client's session writes around it, and what the broker reads in it."""
    rest = {
        name: wire.frames(VECTORS[name].data)[0].rest[14:] for name in ("channel", "take", "take-off", "ack", "nack")
    }
    for name, kind in (
        ("channel", wire.CHANNEL),
        ("take", wire.TAKE),
        ("ack", wire.ACK),
        ("nack", wire.NACK),
        ("unchannel", wire.UNCHANNEL),
    ):
        made = session(ALICE, struct.unpack_from("<Q", VECTORS[name].data, 12)[0] - 1)
        made.channel(kind, 9, rest.get(name, b""))
        assert written(made) == VECTORS[name].data
    join = frames.join_of(rest["channel"])
    assert (join.stream, join.channel, join.window, join.create, join.start) == (
        "orders",
        "billing",
        64,
        True,
        ("first", None),
    )
    assert frames.take_of(rest["take"]) == (100, 5.0, False)
    assert frames.take_of(rest["take-off"]) == 2
    what = frames.What
    entries = [(what.ACK, 7, 2, 0.0), (what.NACK, 9, 1, 1.5)]
    assert frames.entries_of(rest["ack"]) == (None, entries)
    nack = frames.nack_of(rest["nack"])
    assert (nack.spans, nack.delay, nack.reject, nack.failure.reason) == (((9, 1),), None, True, "no such customer")
    assert frames.entries_of(bytes(range(16)) + rest["ack"]) == (bytes(range(16)).hex(), entries)


@pytest.mark.parametrize("size", [1, 3, 7, 16, 64, 1 << 20])
def test_the_engine_stores_and_answers_as_the_page_says(size: int) -> None:
    """Bob's durable publishes behind seven others; alice reads since all, and gets the records live."""
    hub = Hub(log=_core.Log.open(None))
    alice, bob, other = Raw(hub, ALICE, "alice"), Raw(hub, BOB, "bob"), Raw(hub, 5)
    other.ask(wire.topic(0, "x"), wire.topic(1, "price/eth"))
    for number in range(1, 8):
        other.ask(wire.store(int(number > 5), b"", number))
    hub.take(alice.conn)

    def send(conn: int, data: bytes) -> bytes:
        for at in range(0, len(data), size):
            hub.feed(conn, data[at : at + size])
        return hub.take(conn)

    assert not send(bob.conn, VECTORS["topic-eth"].data)
    got = send(bob.conn, VECTORS["publish-durable"].data)
    one = VECTORS["stored-again"].data
    assert got.hex() == (VECTORS["stream"].data + one[:5] + b"\0" + one[6:]).hex()
    assert send(bob.conn, VECTORS["publish-durable"].data).hex() == one.hex()
    got = send(alice.conn, VECTORS["subscribe-since"].data)
    result, stream, begin, *_, record = cut_up(got)
    assert result == VECTORS["result-1"].data
    assert stream == VECTORS["stream"].data
    assert (wire.frames(begin)[0].kind, wire.frames(record)[0].kind) == (wire.GAP, wire.RECORD)


def test_a_delivery_to_one_of_two_subscriptions() -> None:
    made, inboxes = reading()
    assert feed(made, "deliver-plain") == [(_core.EVENT_READY, 2)]
    assert [message.payload for message in inboxes[2].take(10)] == [b""]
    assert len(inboxes[1]) == 0


def test_a_call() -> None:
    made, _ = reading()
    (event,) = feed(made, "call")
    assert event[:3] == (_core.EVENT_CALL, 1, 1)
    message = event[3]
    assert (message.topic, message.payload, message.sender, message.kind) == ("sum", b"[1,2]", "bob", "request")


def test_a_ping_is_answered_by_the_session_itself() -> None:
    made, _ = reading()
    assert feed(made, "ping-down") == []
    assert written(made) == VECTORS["pong-up"].data


def test_an_offer_is_accepted_by_the_session_itself() -> None:
    made, inboxes = reading()
    assert feed(made, "offer") == [(_core.EVENT_READY, 2)]
    assert written(made) == VECTORS["accept"].data
    (message,) = inboxes[2].take(10)
    assert (message.payload, message.kind) == (b"job", "push")


def test_an_offer_that_is_withdrawn_is_taken_back_unless_somebody_has_it() -> None:
    made, inboxes = reading()
    feed(made, "offer")
    assert feed(made, "withdraw") == []
    assert (len(inboxes[2]), inboxes[2].received, inboxes[2].bytes) == (0, 0, 0)
    feed(made, "offer")
    assert len(inboxes[2].take(10)) == 1
    assert feed(made, "withdraw") == []
    assert inboxes[2].received == 1


def test_an_offer_for_a_subscription_that_is_gone_is_refused() -> None:
    made, _ = reading()
    made.forget(1)
    assert feed(made, "offer-again") == []
    assert written(made) == VECTORS["refuse"].data


def test_missed_is_told_with_the_next_message() -> None:
    made, inboxes = reading()
    feed(made, "missed")
    feed(made, "deliver")
    assert [message.missed for message in inboxes[2].take(10)] == [1000]
    assert [message.missed for message in inboxes[1].take(10)] == [0]
    assert (inboxes[2].missed, inboxes[1].missed) == (1000, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64])
def test_the_session_reads_the_same_from_pieces_of_any_size(size: int) -> None:
    """All that the page sends to alice, in one go and in pieces: the same events, messages and answers."""
    script = b"".join(
        VECTORS[name].data
        for step in page.exchange()
        if step.client == "alice" and step.way == "←"
        for name in step.frames
    )

    def play(size: int) -> tuple[list[Any], list[Any], bytes]:
        made = session(ALICE)
        inboxes = [made.inbox(sub, messages=100, bytes=1 << 20, policy=0) for sub in (1, 2)]
        events: list[tuple[Any, ...]] = []
        for at in range(0, len(script), size):
            piece = script[at : at + size]
            events += made.feed(piece, len(piece)) or []
        plain = [
            tuple(str(part.payload) if isinstance(part, _core.Message) else part for part in event) for event in events
        ]
        taken = [[(message.id, message.payload) for message in inbox.take(100)] for inbox in inboxes]
        return sorted(map(repr, plain)), taken, written(made)

    assert play(size) == play(1 << 20)
