"""A bench for the machine of shared services: providers, a manual clock, and the recorded actions."""

import msgspec

from busway.broker.flags import ERROR, FIELDS, PARTIAL
from busway.broker.services.actions import Action, Answer, Ask, Call, CancelCall
from busway.broker.services.requests import SharedRequests
from busway.errors import Code
from busway.settings import Scope

ME = 100
"""The requester's connection; providers are 1, 2, 3, ..."""

TOPIC = "sum"


class Bench:
    """The machine, a clock that is moved by hand, and everything that it wanted done."""

    def __init__(self, plain: int = 0, asking: int = 0, *, each: float = 2.0) -> None:
        self.asking = SharedRequests(each=each, size=10_000)
        self.now = 0.0
        self.done: list[Action] = []
        self.calls: dict[int, int] = {}  # the call number that a connection was given last
        for conn in range(1, plain + asking + 1):
            self.join(conn, asks=conn > plain)

    def join(self, conn: int, *, asks: bool = False, service: int = 0, scope: Scope = "global") -> None:
        self.asking.providers.join(conn, service or conn * 10, TOPIC, f"p{conn}", asks=asks, scope=scope)

    def join_far(self, conn: int, *, asks: bool = False, service: int = 0) -> None:
        self.asking.providers.join_remote(conn, service or conn * 10, TOPIC, f"p{conn}", asks=asks)

    def offs(self) -> list[CancelCall]:
        return self.asking.cancelled_calls()

    def act(self, actions: list[Action]) -> list[Action]:
        self.done += actions
        for one in actions:
            if isinstance(one, Ask | Call):
                self.calls[one.conn] = one.call
        return actions

    def request(self, number: int = 1, conn: int = ME, **options) -> list[Action]:
        return self.act(self.asking.request(conn, number, TOPIC, b"frame", self.now, **options))

    def says(self, conn: int, willing: bool) -> list[Action]:
        return self.act(self.asking.accepted(conn, self.calls[conn], self.now, willing=willing))

    def replies(self, conn: int, payload: bytes = b"", flags: int = 0, code: int = 0, fields=None) -> list[Action]:
        packed = msgspec.msgpack.encode(fields) if fields else b""
        return self.act(self.asking.answered(conn, self.calls[conn], flags, code, packed, payload, self.now))

    def fails(self, conn: int, text: bytes = b"oops", code: int = Code.HANDLER_ERROR) -> list[Action]:
        return self.replies(conn, text, ERROR, code)

    def dies(self, conn: int) -> list[Action]:
        return self.act(self.asking.gone(conn, self.now))

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.act(self.asking.expire(self.now))

    def idle(self) -> bool:
        asking = self.asking
        return not (asking._requests or asking._attempts or asking._bytes or asking._alarms or asking.pending)


def asked(actions: list[Action]) -> list[int]:
    assert all(isinstance(one, Ask) for one in actions)
    return [one.conn for one in actions]


def called(actions: list[Action]) -> int:
    (one,) = actions
    assert isinstance(one, Call)
    assert one[1:] == (one.conn * 10, one.call, ME, TOPIC, b"frame")
    return one.conn


def answer(actions: list[Action]) -> Answer:
    (one,) = actions
    assert isinstance(one, Answer)
    return one


def named(actions: list[Action]) -> list[tuple[str, int, str, bool]]:
    """Who is said to have failed: name, code, text, whether more follows."""
    assert all(isinstance(one, Answer) and one.flags & ~PARTIAL == ERROR | FIELDS for one in actions)
    return [
        (msgspec.msgpack.decode(one.fields)[".id"], one.code, one.payload.decode(), bool(one.flags & PARTIAL))
        for one in actions
    ]


def error(actions: list[Action]) -> tuple[int, str]:
    one = answer(actions)
    assert one.flags == ERROR
    return one.code, one.payload.decode()
