"""Delegated properties: wrappers of messages, subscriptions and channels inherit the properties of the wrapped object.

The typed wrappers and the blocking API use these classes.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from busway.message import Message
from busway.positions import Positions
from busway.settings import Policy


class MessageProperties:
    """Properties of the message that a wrapper has in `message`."""

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
    """The properties and counters that every subscription has."""

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
    """Properties of the subscription that a wrapper has in `_inner`.

    A wrapper defines `pending` and `closed` itself, since it may buffer messages of its own.
    """

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
    """The properties and counters that every channel has."""

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
    """Properties of the channel that a wrapper has in `_inner`."""

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
        """Number of messages that the stream dropped before they were acknowledged."""
        return self._inner.lost

    @property
    def pending(self) -> int:
        """Number of messages that have arrived and were not taken yet."""
        return self._inner.pending

    @property
    def closed(self) -> bool:
        return self._inner.closed


def position_before(reached: Positions, undelivered: Iterable[Message]) -> Positions:
    """The position of a consumer that has reached `reached` but was not given the `undelivered` messages."""
    found = dict(reached)
    for message in undelivered:
        if (position := message.position) is not None:
            key = position.broker, position.stream
            found[key] = min(found.get(key, position.offset), position.offset)
    return Positions(found)
