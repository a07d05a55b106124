"""Consumers of other nodes at the channels of this one: they have a seat here, and are given what they ask for.

A driver. A seat is a consumer without a window: the node behind it takes for its own client, when that has room, and hears when there
is something to take. So a message is given to one consumer of the whole cluster, and lies nowhere in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import Block, encode_records
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import ANSWERED, CONSUME, ENDED, GIVEN, MISSING, MORE, SELF, NodeProtocolHandler
from busway.common import environment
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_AHEAD: Final = 4 * MiB
"""Bytes that may wait for a link before seats behind it are given more."""
_KINDS: Final = range(0x30, 0x35)
"""CHANNEL, UNCHANNEL, TAKE and ACK."""

_encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int, bytes])


class ConsumerHost(NodeProtocolHandler):
    """The seats of other nodes."""

    kinds = frozenset({CONSUME})

    def __init__(self, hub: "Hub", here: Callable[[int, int, int, bytes], None]) -> None:
        self._hub = hub
        self._here = here
        """Hears what consumers of this node itself are told."""

    def prepare(self) -> None:
        """The broker's channels are there: deliver to this node's own consumers of copied channels."""
        self._hub.channels.outlets[SELF] = self

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - all have seats
        self._hub.channels.outlets[conn] = self

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._hub.channels.forget(conn)
        self._hub.channels.outlets.pop(conn, None)

    def heard_here(self, number: int, body: bytes) -> None:
        """The same of this node itself."""
        self.heard(SELF, CONSUME, number, body)
        self._hub.flush()

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind
        """A frame as a client sends it."""
        try:
            frame, seat, rest = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Stranger(f"a seat: {error}") from error
        if frame not in _KINDS or not 0 <= seat < 1 << 32:
            raise Stranger(f"a frame {frame:#x} of seat {seat}")
        self._hub.channels.frame(conn, frame, seat, number, rest)

    # As an outlet.

    def hand(self, who: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:  # noqa: ARG002
        now = environment.time_ns()
        rows, given, left = [], list[Span](), list[Span]()
        for start, count in spans:
            for offset in range(start, start + count):
                row = block.get(offset)
                if row is None or 0 < row[10] <= now:
                    _add(left, offset)
                else:
                    rows.append(row)
                    _add(given, offset)
        if rows:
            self._say(who, GIVEN, deliveries, given, encode_records(rows))
        return left

    def has_room(self, who: Who) -> bool:
        return who[0] == SELF or self._hub.engine.pending(who[0]) < _AHEAD

    def want_room(self, who: Who) -> None:
        self._hub.engine.want_room(who[0])

    def result(self, who: Who, call: int, code: int, value: int, text: str) -> None:
        flight = self._hub.channels.in_flight(who)
        self._send(who[0], ANSWERED, call, (who[1], int(code), value, text, flight))

    def gap(self, who: Who, stream: int, begin: int, end: int) -> None:  # noqa: ARG002 - it knows whose it is
        self._say(who, MISSING, begin, end)

    def ended(self, who: Who, code: int, text: str) -> None:
        self._say(who, ENDED, int(code), text)

    def more(self, who: Who) -> None:
        self._say(who, MORE, self._hub.channels.in_flight(who))

    def _say(self, who: Who, kind: int, *what: Any) -> None:
        self._send(who[0], kind, who[1], what)

    def _send(self, conn: int, kind: int, number: int, what: tuple[Any, ...]) -> None:
        if conn == SELF:
            self._hub.loop.call_soon(self._said, kind, number, _encode(what))
        else:
            self._hub.engine.node(conn, kind, number, _encode(what))

    def _said(self, kind: int, number: int, body: bytes) -> None:
        self._here(SELF, kind, number, body)
        self._hub.flush()


def _add(spans: list[Span], offset: int) -> None:
    if spans and sum(spans[-1]) == offset:
        spans[-1] = spans[-1][0], spans[-1][1] + 1
    else:
        spans.append((offset, 1))
