"""The way to the consumers of a channel: clients of this broker, or another node that consumes for its own clients."""

from typing import TYPE_CHECKING, Protocol

from busway._core import Block
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Sink(Protocol):
    """What a consumer is told."""

    def hand(self, who: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:
        """Give it these records of a block; those that have expired or are not there."""

    def has_room(self, who: Who) -> bool:
        """Whether it may be given more now."""

    def want_room(self, who: Who) -> None:
        """Have `Delivering.room` called when it may."""

    def result(self, who: Who, call: int, code: int, value: int, text: str) -> None:
        """The answer to a frame of it."""

    def gap(self, who: Who, stream: int, begin: int, end: int) -> None:
        """These offsets are gone."""

    def ended(self, who: Who, code: int, text: str) -> None:
        """The channel is no more."""

    def more(self, who: Who) -> None:
        """The channel has something to hand out, and this one has taken all that it asked for."""


class ClientSink:
    """Clients of this broker; the engine writes to them."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def hand(self, who: Who, stream: int, block: Block, spans: list[Span], deliveries: int) -> list[Span]:
        return self._hub.engine.hand_records(*who, stream, block, spans, deliveries)[1]

    def has_room(self, who: Who) -> bool:
        return self._hub.engine.has_room(*who)

    def want_room(self, who: Who) -> None:
        self._hub.engine.want_room(*who)

    def result(self, who: Who, call: int, code: int, value: int, text: str) -> None:
        self._hub.engine.result(who[0], call, code, value, text)

    def gap(self, who: Who, stream: int, begin: int, end: int) -> None:
        self._hub.engine.tell_gap(*who, stream, begin, end)

    def ended(self, who: Who, code: int, text: str) -> None:
        self._hub.engine.tell_ended(*who, code, text)

    def more(self, who: Who) -> None:
        """Its window says what it is given, unless it takes from several nodes."""
        if self._hub.nodes is not None:
            self._hub.nodes.more_here(who)
