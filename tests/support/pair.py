"""The broker's engine and clients' sessions joined without sockets, so that a test needs no await and no clock."""

from collections.abc import Callable
from typing import Any

import msgspec

from busway import _core
from busway.broker.flags import FIELDS, PIN, POST
from tests.support import wire

LIMITS: dict[str, int] = {
    "frame": 8 << 20,
    "topic": 1024,
    "fields": 65536,
    "subscriptions": 131072,
    "expressions": 1024,
    "outbox": 16 << 20,
    "topics": 65536,
    "senders": 4096,
    "pending": 65536,
    "patience_ms": 60_000,
    "stall_ms": 500,
}


class Hello(msgspec.Struct):
    """What a hub needs of the map of HELLO."""

    session: int
    name: str = ""


def engine(defaults: bytes | None = None, **limits: int) -> _core.Engine:
    return _core.Engine(**(LIMITS | limits), defaults=defaults)


OTHERS = {
    _core.EVENT_REQUEST,
    _core.EVENT_CANCEL,
    _core.EVENT_ACCEPT,
    _core.EVENT_ANSWER,
    _core.EVENT_UNSERVE,
    _core.EVENT_CHANNEL,
    _core.EVENT_LATER,
    _core.EVENT_ROOM,
}
GUID = bytes(range(16))


class Hub:
    """What the Python broker does around the engine, in its shortest form."""

    def __init__(self, defaults: bytes | None = None, *, log: _core.Log | None = None, **limits: int) -> None:
        """With a log there is a stream `orders`, number 2, that takes everything."""
        self.limits = LIMITS | limits
        self.log = log
        self.cursors: dict[tuple[int, int], tuple[_core.Selection, int]] = {}
        self.engine = engine(defaults, **limits)
        if log is not None:
            self.engine.add_stream(2, "orders", GUID, log, None)
        self.out: dict[int, bytearray] = {}
        self.failed: dict[int, tuple[int, str]] = {}  # conn -> what it did wrong
        self.closed: dict[int, tuple[int, str]] = {}  # conn -> its own CLOSE
        self.paused: set[int] = set()
        self.yields: list[int] = []
        self.others: list[tuple[Any, ...]] = []
        self.waiting: list[int] = []
        self.calls: list[tuple[int, int, _core.Message]] = []
        self.clients = 0
        self.known: dict[int, tuple[int, int, str]] = {}
        self.welcome: Callable[[int], bytes] = lambda client: msgspec.msgpack.encode({"client": client})

    def connect(self) -> int:
        out = bytearray()

        def write(view: memoryview) -> None:
            out.extend(view)

        conn = self.engine.connect(write)
        self.out[conn] = out
        return conn

    def feed(self, conn: int, data: bytes) -> None:
        self.handle(self.engine.feed(conn, data, len(data)))

    def tick(self, now_ms: int) -> None:
        self.handle(self.engine.tick(now_ms))

    def writing(self, conn: int, yes: bool) -> None:
        self.handle(self.engine.writing(conn, yes))

    def disconnect(self, conn: int) -> None:
        self.engine.disconnect(conn)
        self.handle(self.engine.flush())

    def handle(self, events: list[tuple[Any, ...]] | None) -> None:
        while events:
            resumed = []
            for event in events:
                self.one(event, resumed)
            events = self.engine.flush() or []
            for conn in resumed:
                events = events + (self.engine.resume(conn) or [])

    def one(self, event: tuple[Any, ...], resumed: list[int]) -> None:
        kind, conn = event[0], event[1]
        if kind == _core.EVENT_HELLO:
            try:
                fields = msgspec.msgpack.decode(event[3], type=Hello)
                if not 0 < fields.session < 1 << 64:
                    raise ValueError("not a session")
            except (ValueError, msgspec.MsgspecError) as error:
                self.failed[conn] = _core.ERRORS["HANDSHAKE"][0], str(error)
                self.engine.close(conn, *self.failed[conn])
                return
            self.clients += 1
            older = self.engine.accept(conn, fields.session, fields.name, self.clients, 1, self.welcome(self.clients))
            self.known[conn] = self.clients, fields.session, fields.name
            if older is not None:
                self.engine.close(older, _core.ERRORS["SESSION_TAKEN"][0], "taken")
        elif kind == _core.EVENT_SUBSCRIBE:
            *said, since = event[1:]
            if self.engine.subscribe(*said, None) == 0 and since and self.log is not None:
                self.begin(conn, event[2], event[6], event[8])
        elif kind == _core.EVENT_SERVE:
            self.engine.serve(*event[1:])
        elif kind == _core.EVENT_KEEP:
            client, session, name = self.known[conn]
            flags = event[3] & (POST | PIN | FIELDS)
            self.engine.publish((client, session, name, flags, event[4], event[8][16:]))
            self.engine.unblock(conn)
        elif kind == _core.EVENT_BEHIND:
            self.cursors[conn, event[2]] = (self.cursors[conn, event[2]][0], event[4])
        elif kind == _core.EVENT_UNSUBSCRIBE:
            self.cursors.pop((conn, event[2]), None)
        elif kind in OTHERS:
            self.others.append(event)
        elif kind == _core.EVENT_CALL:
            self.calls.append((conn, event[2], event[3]))
        elif kind == _core.EVENT_CLOSE:
            self.closed[conn] = event[2], event[3]
        elif kind == _core.EVENT_FAIL:
            self.failed[conn] = event[2], event[3]
        elif kind == _core.EVENT_PAUSE:
            self.paused.add(conn)
        elif kind == _core.EVENT_YIELD:
            self.yields.append(conn)
            resumed.append(conn)
        elif kind == _core.EVENT_READ:
            self.paused.discard(conn)
        elif kind == _core.EVENT_WAIT:
            self.waiting.append(conn)
        elif kind == _core.EVENT_RESUME:
            self.paused.discard(conn)
            resumed.append(conn)
        else:
            raise AssertionError(f"unknown event {event!r}")

    def begin(self, conn: int, sub: int, pattern: str, rules: bytes) -> None:
        """A subscription that reads from the beginning of the log."""
        assert self.log is not None
        self.engine.add_cursor(conn, sub, 2)
        self.engine.send_gap(conn, sub, 2, self.log.first, self.log.first)
        self.cursors[conn, sub] = _core.Selection(pattern, rules), self.log.first
        self.replay(conn, sub)

    def replay(self, conn: int, sub: int, most: int = 1 << 20) -> None:
        """Give a subscription that is behind all it has room for."""
        assert self.log is not None
        (selection, at), held, live = self.cursors[conn, sub], None, False
        while not live and self.engine.has_room(conn, sub):
            _, behind, block = self.log.read(at, most)
            at, held, live = self.engine.replay(conn, sub, 2, block, behind, selection, held)
        self.cursors[conn, sub] = selection, at

    def waits(self, conn: int) -> bool:
        """Whether a publisher has to wait."""
        return conn in self.paused or conn in self.engine.waiting()

    def take(self, conn: int) -> bytes:
        data = bytes(self.out[conn])
        self.out[conn].clear()
        return data


class Raw:
    """A client of the hub that writes frames of its own; `got` holds what was read, slots resolved."""

    def __init__(self, hub: Hub, session: int, name: str = "", *, hello: bool = True) -> None:
        self.hub, self.session, self.name = hub, session, name
        self.conn = hub.connect()
        self.slots = wire.Reader()
        self.left = b""
        if hello:
            self.send(wire.hello(session, name))
            assert self.read()[0][0] == wire.WELCOME

    def send(self, *data: bytes) -> None:
        self.hub.feed(self.conn, b"".join(data))

    def read(self) -> list[tuple[int, Any]]:
        """(kind, what it says) of each frame that came, slots left out."""
        whole, self.left = wire.split(self.left + self.hub.take(self.conn))
        return [(got.kind, self.slots.read(got)) for got in whole if not self.slots.learn(got)]

    def ask(self, *data: bytes) -> list[tuple[int, Any]]:
        self.send(*data)
        return self.read()

    def deliveries(self) -> list[wire.Delivery]:
        got = self.read()
        assert all(kind == wire.DELIVER for kind, _ in got), got
        return [said for _, said in got]


class Client:
    """A native session joined to the hub."""

    def __init__(self, hub: Hub, session: int, name: str = "") -> None:
        self.hub, self.number, self.name = hub, session, name
        self.session = _core.Session(session)
        self.events: list[tuple[Any, ...]] = []
        self.join()

    def join(self) -> None:
        self.conn = self.hub.connect()
        self.session.attach(lambda: None)
        fields = {"name": self.name, "session": self.number, "credentials": None, "agent": "test"}
        self.session.hello(msgspec.msgpack.encode(fields))
        self.pump()
        self.session.open(**{key: self.hub.limits[key] for key in ("frame", "topic", "fields", "topics")})

    def pump(self) -> list[tuple[Any, ...]]:
        """Both directions until nothing moves; the events of the session."""
        while True:
            view = self.session.take()
            if view is not None and len(view):
                self.hub.feed(self.conn, bytes(view))
            data = self.hub.take(self.conn)
            if data:
                self.events += self.session.feed(data, len(data)) or []
            elif view is None or not len(view):
                break
        events, self.events = self.events, []
        return events
