"""What wrappers show of what they are around: a message's parts, a subscription's name and figures."""

from collections.abc import Iterable
from typing import Any, Protocol

from busway.message import Message
from busway.positions import Positions
from busway.settings import Policy


class MessageProperties:
    """Around a message."""

    __slots__ = ()
    message: Message

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def text(self) -> str:
        return self.message.text

    def json(self) -> Any:
        return self.message.json()


class HasCounters(Protocol):
    """What every subscription tells of itself."""

    @property
    def pattern(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def missed(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def interrupted(self) -> int: ...
    @property
    def position(self) -> Positions: ...


class CounterProperties:
    """Around a subscription. What is pending and whether it is closed, each wrapper says itself: it may hold messages back."""

    _inner: HasCounters

    @property
    def pattern(self) -> str:
        return self._inner.pattern

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def policy(self) -> Policy:
        return self._inner.policy

    @property
    def missed(self) -> int:
        return self._inner.missed

    @property
    def received(self) -> int:
        return self._inner.received

    @property
    def lost(self) -> int:
        return self._inner.lost

    @property
    def interrupted(self) -> int:
        return self._inner.interrupted


class HasChannelCounters(Protocol):
    """What every channel tells of itself."""

    @property
    def stream(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def closed(self) -> bool: ...


class ChannelProperties:
    """Around a channel."""

    _inner: HasChannelCounters

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def window(self) -> int:
        return self._inner.window

    @property
    def lost(self) -> int:
        """Messages that the stream dropped before they were acknowledged."""
        return self._inner.lost

    @property
    def pending(self) -> int:
        """Messages that have arrived and were not taken yet."""
        return self._inner.pending

    @property
    def closed(self) -> bool:
        return self._inner.closed


def before(reached: Positions, held: Iterable[Message]) -> Positions:
    """How far a consumer has come if it did not get these."""
    found = dict(reached)
    for message in held:
        if (place := message.position) is not None:
            key = place.broker, place.stream
            found[key] = min(found.get(key, place.offset), place.offset)
    return Positions(found)
