"""Hosts consumers of other nodes at the channels of this node.

It is a sink of the broker's channels. A remote consumer has no window: its
node takes messages when its client has room, and this node announces new messages. So a message is delivered to one
consumer of the whole cluster and is never buffered in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from busway._core import Block, encode_records
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span
from busway.cluster.channels.messages import FRAME, NEWS, Ended, Frame, Given, Missing, More, Result
from busway.cluster.links.calls import Calls
from busway.cluster.node import Node
from busway.cluster.protocol import SELF, NodeProtocolHandler
from busway.common import environment
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.runtime import Runtime

_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a link before its consumers get more messages."""


class ConsumerHost(NodeProtocolHandler):
    """The remote consumers at one node."""

    def __init__(self, runtime: "Runtime", calls: Calls, consumers: "Callable[[], ChannelConsumers]") -> None:
        self._runtime = runtime
        self._consumers = consumers
        self._calls = calls
        calls.on(FRAME, self._frame)

    def prepare(self) -> None:
        """The broker's channels are open: deliver to this node's own consumers of replicated channels."""
        self._consumers().node_sinks[SELF] = self

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - every node may have consumers
        self._consumers().node_sinks[conn] = self

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._consumers().forget(conn)
        self._consumers().node_sinks.pop(conn, None)

    def _frame(self, conn: int, number: int, frame: Frame) -> None:
        self._consumers().frame(conn, frame.kind, frame.consumer, number, frame.rest)

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
            self._calls.tell(who[0], NEWS, Given(who[1], deliveries, sent, encode_records(rows)))
        return left

    def has_room(self, who: Who) -> bool:
        return who[0] == SELF or self._runtime.engine.pending(who[0]) < _AHEAD

    def want_room(self, who: Who) -> None:
        self._runtime.engine.want_room(who[0])

    def result(self, who: Who, call: int, code: int, value: int, text: str) -> None:
        flight = self._consumers().in_flight(who)
        self._calls.answer(who[0], FRAME, call, Result(int(code), value, text, flight))

    def gap(self, who: Who, stream: int, begin: int, end: int) -> None:  # noqa: ARG002 - the consumer knows its stream
        self._calls.tell(who[0], NEWS, Missing(who[1], begin, end))

    def ended(self, who: Who, code: int, text: str) -> None:
        self._calls.tell(who[0], NEWS, Ended(who[1], int(code), text))

    def more(self, who: Who) -> None:
        self._calls.tell(who[0], NEWS, More(who[1], self._consumers().in_flight(who)))


def _add(spans: list[Span], offset: int) -> None:
    if spans and sum(spans[-1]) == offset:
        spans[-1] = spans[-1][0], spans[-1][1] + 1
    else:
        spans.append((offset, 1))
