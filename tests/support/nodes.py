"""Hubs that are linked with each other, without sockets: their bytes are carried by pump()."""

from typing import Any

import msgspec

from busway import _core
from tests.support.pair import Hub

SAID = {
    _core.EVENT_WELCOME,
    _core.EVENT_NODE,
    _core.EVENT_SYNCED,
    _core.EVENT_PONG,
    _core.EVENT_CONFLICT,
    _core.EVENT_PROVIDER,
    _core.EVENT_ASK,
}
HELLO = msgspec.msgpack.encode({"session": 9, "name": "near", "node": {"cluster": "test"}})


class Node(Hub):
    """A hub that lets other nodes in; what they say besides messages is kept in `said`."""

    def __init__(self, *, log: _core.Log | None = None, **limits: int) -> None:
        super().__init__(log=log, **({"links": 1000} | limits))
        self.said: list[tuple[Any, ...]] = []
        self.ends: dict[int, tuple[Node, int]] = {}

    def one(self, event: tuple[Any, ...], resumed: list[int]) -> None:
        kind, conn = event[0], event[1]
        if kind == _core.EVENT_HELLO and "node" in msgspec.msgpack.decode(event[3]):
            assert self.engine.admit_node(conn, 9, "near", 1, 1, self.welcome(0))
        elif kind in SAID:
            self.said.append(event)
        else:
            super().one(event, resumed)

    def dial(self, hello: bytes = HELLO) -> int:
        out = bytearray()
        conn = self.engine.dial(out.extend, hello)
        self.out[conn] = out
        self.handle(self.engine.flush())
        return conn

    def link(self, conn: int) -> None:
        self.engine.link(conn)
        self.handle(self.engine.flush())


def pump(*nodes: Node) -> None:
    """Carry the bytes of all links until nothing moves."""
    moved = True
    while moved:
        moved = False
        for node in nodes:
            node.handle(node.engine.flush())
            for conn, (other, end) in list(node.ends.items()):
                if data := node.take(conn):
                    moved = True
                    other.feed(end, data)


def dial(near: Node, far: Node) -> tuple[int, int]:
    """Two connections that are each other's ends, the handshake over."""
    ends = near.dial(), far.connect()
    near.ends[ends[0]], far.ends[ends[1]] = (far, ends[1]), (near, ends[0])
    pump(near, far)
    return ends


def join(near: Node, far: Node) -> tuple[int, int]:
    ends = dial(near, far)
    near.link(ends[0])
    far.link(ends[1])
    pump(near, far)
    return ends
