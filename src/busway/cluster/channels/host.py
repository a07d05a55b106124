"""Hosts consumers of other nodes at the channels of this node.

`links` calls it for frames; it is a sink of the broker's channels. A remote consumer has no window: its
node takes messages when its client has room, and this node announces new messages. So a message is delivered to one
consumer of the whole cluster and is never buffered in between.
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
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.runtime import Runtime

_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a link before its consumers get more messages."""
_KINDS: Final = range(0x30, 0x35)
"""CHANNEL, UNCHANNEL, TAKE and ACK."""

_encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int, bytes])


class ConsumerHost(NodeProtocolHandler):
    """The remote consumers at one node."""

    kinds = frozenset({CONSUME})

    def __init__(
        self,
        runtime: "Runtime",
        consumers: "Callable[[], ChannelConsumers]",
        here: Callable[[int, int, int, bytes], None],
    ) -> None:
        self._runtime = runtime
        self._consumers = consumers
        self._here = here
        """Receives frames for consumers of this node at replicated channels."""

    def prepare(self) -> None:
        """The broker's channels are open: deliver to this node's own consumers of replicated channels."""
        self._consumers().node_sinks[SELF] = self

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - every node may have consumers
        self._consumers().node_sinks[conn] = self

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._consumers().forget(conn)
        self._consumers().node_sinks.pop(conn, None)

    def heard_here(self, number: int, body: bytes) -> None:
        """Handle a frame of a consumer of this node."""
        self.heard(SELF, CONSUME, number, body)
        self._runtime.flush()

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind
        """Handle a frame of a remote consumer. It has the form of a client's frame."""
        try:
            frame, consumer, rest = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Stranger(f"invalid frame of a remote consumer: {error}") from error
        if frame not in _KINDS or not 0 <= consumer < 1 << 32:
            raise Stranger(f"unexpected frame {frame:#x} of remote consumer {consumer}")
        self._consumers().frame(conn, frame, consumer, number, rest)

    # As a sink.

    def deliver(self, who: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:  # noqa: ARG002
        now = environment.time_ns()
        rows, sent, left = [], list[Span](), list[Span]()
        for start, count in spans:
            for offset in range(start, start + count):
                row = block.get(offset)
                if row is None or 0 < row[10] <= now:
                    _add(left, offset)
                else:
                    rows.append(row)
                    _add(sent, offset)
        if rows:
            self._send_to(who, GIVEN, deliveries, sent, encode_records(rows))
        return left

    def has_room(self, who: Who) -> bool:
        return who[0] == SELF or self._runtime.engine.pending(who[0]) < _AHEAD

    def want_room(self, who: Who) -> None:
        self._runtime.engine.want_room(who[0])

    def result(self, who: Who, call: int, code: int, value: int, text: str) -> None:
        flight = self._consumers().in_flight(who)
        self._send(who[0], ANSWERED, call, (who[1], int(code), value, text, flight))

    def gap(self, who: Who, stream: int, begin: int, end: int) -> None:  # noqa: ARG002 - the consumer knows its stream
        self._send_to(who, MISSING, begin, end)

    def ended(self, who: Who, code: int, text: str) -> None:
        self._send_to(who, ENDED, int(code), text)

    def more(self, who: Who) -> None:
        self._send_to(who, MORE, self._consumers().in_flight(who))

    def _send_to(self, who: Who, kind: int, *values: Any) -> None:
        self._send(who[0], kind, who[1], values)

    def _send(self, conn: int, kind: int, number: int, values: tuple[Any, ...]) -> None:
        if conn == SELF:
            self._runtime.loop.call_soon(self._deliver_here, kind, number, _encode(values))
        else:
            self._runtime.engine.node(conn, kind, number, _encode(values))

    def _deliver_here(self, kind: int, number: int, body: bytes) -> None:
        self._here(SELF, kind, number, body)
        self._runtime.flush()


def _add(spans: list[Span], offset: int) -> None:
    if spans and sum(spans[-1]) == offset:
        spans[-1] = spans[-1][0], spans[-1][1] + 1
    else:
        spans.append((offset, 1))
