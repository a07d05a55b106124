"""What wrappers show of what they are around: a message's parts, a subscription's name and figures."""

from typing import Any, Protocol

from busway.message import Message
from busway.settings import Policy


class ShowsMessage:
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


class Figures(Protocol):
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


class ShowsFigures:
    """Around a subscription. What is pending and whether it is closed, each wrapper says itself: it may hold messages back."""

    _inner: Figures

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
