"""Sinks: deliver from a channel to consumers, which are clients of this broker or nodes that consume for clients."""

from typing import TYPE_CHECKING, Protocol

from busway._core import Block
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span

if TYPE_CHECKING:
    from busway.broker.peers import ChannelPeers
    from busway.broker.runtime import Runtime


class Sink(Protocol):
    """Delivers to consumers. `ClientSink` reaches clients, and `cluster.channels.host` other nodes."""

    def deliver(self, consumer: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:
        """Deliver these records of a block. Returns those that have expired or are missing."""

    def has_room(self, consumer: Who) -> bool:
        """Whether the consumer can get more now."""

    def want_room(self, consumer: Who) -> None:
        """Have `Channels.room` called when the consumer has room again."""

    def result(self, consumer: Who, call: int, code: int, value: int, text: str) -> None:
        """Answer a frame of the consumer."""

    def gap(self, consumer: Who, stream: int, begin: int, end: int) -> None:
        """Report that the stream has dropped these offsets."""

    def ended(self, consumer: Who, code: int, text: str) -> None:
        """Report that the channel has ended."""

    def more(self, consumer: Who) -> None:
        """Report that the channel has messages again, to a consumer whose takes have ended."""


class ClientSink:
    """The sink of clients of this broker; the engine writes to them."""

    def __init__(self, runtime: "Runtime", peers: "ChannelPeers") -> None:
        self._runtime = runtime
        self._peers = peers

    def deliver(self, consumer: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:
        return self._runtime.engine.deliver_records(*consumer, stream, block, spans, deliveries)[1]

    def has_room(self, consumer: Who) -> bool:
        return self._runtime.engine.has_room(*consumer)

    def want_room(self, consumer: Who) -> None:
        self._runtime.engine.want_room(*consumer)

    def result(self, consumer: Who, call: int, code: int, value: int, text: str) -> None:
        self._runtime.engine.result(consumer[0], call, code, value, text)

    def gap(self, consumer: Who, stream: int, begin: int, end: int) -> None:
        self._runtime.engine.send_gap(*consumer, stream, begin, end)

    def ended(self, consumer: Who, code: int, text: str) -> None:
        self._runtime.engine.send_ended(*consumer, code, text)

    def more(self, consumer: Who) -> None:
        """Report only consumers that take from several nodes. All others get what their window allows."""
        self._peers.more_here(consumer)
