"""Replays the findings of fuzzing, and its first inputs, through the Python binding: no crash, no half frame."""

import runpy
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from busway import _core, errors
from tests.support import rules, wire
from tests.support.pair import LIMITS, Hub

HERE = Path(__file__).parents[1]
TARGETS = ("engine_feed", "session_feed", "topics", "patterns", "fields", "rules")
SMALL = {
    "frame": 2048, "topic": 64, "fields": 64, "subscriptions": 8, "outbox": 4096, "topics": 4, "senders": 2, "pending": 4,
    "stall_ms": 50,
}  # fmt: skip


@pytest.fixture(scope="session")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs that fuzzing begins with."""
    folder = tmp_path_factory.mktemp("seeds")
    runpy.run_path(str(HERE.parent / "crates" / "fuzz" / "seeds.py"))["main"](folder)
    return folder


def replay_engine(data: bytes) -> None:
    """The script of crates/fuzz/src/lib.rs: three clients that were let in and one that was not."""
    hub = Hub(**SMALL)
    conns = [hub.connect() for _ in range(4)]
    writable = [True] * 4
    now = at = 0
    for number, conn in enumerate(conns[:3], start=1):
        hub.feed(conn, wire.hello(number))
    while at + 2 <= len(data):
        action, size = data[at], data[at + 1]
        step, at = data[at + 2 : at + 2 + size], at + 2 + size
        who = action % 4
        match action // 4 % 8:
            case 0 | 1:
                hub.feed(conns[who], step)
            case 2 | 3:
                hub.feed(conns[who], len(step).to_bytes(4, "little") + step)
            case 4:
                for byte in step:
                    hub.feed(conns[who], bytes([byte]))
            case 5:
                now += 10 * len(step)
                hub.tick(now)
            case 6:
                writable[who] = not writable[who]
                hub.writing(conns[who], writable[who])
            case _:
                hub.disconnect(conns[who])
                wire.frames(hub.take(conns[who]))
                conns[who], writable[who] = hub.connect(), True
    for conn in conns:
        wire.frames(hub.take(conn))  # whole frames only
        hub.disconnect(conn)
    assert hub.engine.stats()["subscriptions"] == 0
    assert hub.engine.stats()["pending"] == 0


def replay_session(data: bytes) -> None:
    size, limit, stream = data[0] + 1, data[1], data[2:]
    session = _core.Session(7)
    session.attach(lambda: None)
    session.open(**{key: LIMITS[key] for key in ("frame", "topic", "fields", "topics")})
    inbox = session.inbox(1, messages=limit // 4 + 1, bytes=1000, policy=limit % 4)
    for at in range(0, len(stream), size):
        piece = stream[at : at + size]
        try:
            session.feed(piece, len(piece))
        except errors.BusError:
            break
    for message in inbox.take(1000):
        assert isinstance(message.payload, bytes)
        assert message.topic is not None
    wire.frames(bytes(session.take() or b""))


def replay_topics(data: bytes) -> None:
    first, _, second = data.decode(errors="replace").partition("\n")
    try:
        a, b = _core.check_topic(first), _core.check_topic(second)
    except errors.InvalidTopic:
        return
    assert _core.matches(a, b) == _core.matches(b, a)


def replay_patterns(data: bytes) -> None:
    expression, _, topic = data.decode(errors="replace").partition("\n")
    try:
        pattern, concrete = _core.check_pattern(f"re:{expression}"), _core.check_topic(topic)
    except errors.InvalidTopic:
        return
    if _core.matches(pattern, concrete):
        assert _core.matches(pattern, "**")


def replay_fields(data: bytes) -> None:
    try:
        _core.check_fields(data)
    except errors.InvalidFields:
        return
    assert _core.Rules(b"").matches("a/b", data, b"")


def replay_rules(data: bytes) -> None:
    """As crates/fuzz/fuzz_targets/rules.rs reads it: rules and fields, or the text of one rule."""
    kind, rest = data[0] % 5, data[1:]
    fields, payload = (
        msgspec.msgpack.encode({"a": 1, "b": 2.5, "s": "abc", "l": [1, "x", None], "m": {"k": []}}),
        b"abc",
    )
    if kind == 0:
        size = int.from_bytes(rest[:2], "little")
        raw, fields = rest[2 : 2 + size], rest[2 + size :]
    else:
        name, op = [("", "cel"), ("s", "cel"), ("msg", "glob"), ("s", "re")][kind - 1]
        raw = rules.wire((name, op, rest.decode(errors="replace")))
    try:
        compiled = _core.Rules(raw)
    except errors.InvalidRule as error:
        assert error.reason
        return
    assert compiled.matches("a/b", fields, payload) is compiled.matches("a/b", fields, payload)


REPLAY: dict[str, Callable[[bytes], None]] = {
    "engine_feed": replay_engine,
    "session_feed": replay_session,
    "topics": replay_topics,
    "patterns": replay_patterns,
    "fields": replay_fields,
    "rules": replay_rules,
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_seeds(target: str, seeds: Path) -> None:
    files = sorted((seeds / target).iterdir())
    assert len(files) > 20
    for file in files:
        REPLAY[target](file.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_found(target: str) -> None:
    for file in sorted(HERE.glob(f"corpus/{target}/*")):
        REPLAY[target](file.read_bytes())
