"""Publishes that wait for the connection to come back: in order, up to a number of bytes, none too old."""

from collections import deque
from typing import NamedTuple

from busway.errors import LimitExceeded
from busway.settings import Buffer


class _Kept(NamedTuple):
    topic: str
    payload: bytes | str
    fields: bytes
    size: int
    until: float
    scope: int


class OfflineBuffer:
    """The messages of one client; a machine, it is told the time."""

    def __init__(self) -> None:
        self._messages: deque[_Kept] = deque()
        self._bytes = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, topic: str, payload: bytes | str, fields: bytes, policy: Buffer, now: float, scope: int = 0) -> None:
        """Keep one more; LimitExceeded if there is no room."""
        self.expire(now)
        size = len(topic) + len(fields) + (len(payload) if isinstance(payload, bytes) else len(payload.encode()))
        if self._bytes + size > policy.bytes:
            raise LimitExceeded(f"the buffer for the time without a connection is full ({policy.bytes} bytes)")
        self._messages.append(_Kept(topic, payload, fields, size, now + policy.age, scope))
        self._bytes += size

    def expire(self, now: float) -> None:
        """Drop from the front what is too old, and count it."""
        messages = self._messages
        while messages and messages[0].until <= now:
            self._bytes -= messages.popleft().size
            self.expired += 1

    def take(self, now: float) -> list[tuple[str, bytes | str, bytes, int]]:
        """Everything that is still fresh, in the order it was published; nothing stays."""
        messages = [(kept.topic, kept.payload, kept.fields, kept.scope) for kept in self._messages if kept.until > now]
        self.expired += len(self._messages) - len(messages)
        self.clear()
        return messages

    def clear(self) -> int:
        """Forget all; how many there were."""
        count = len(self._messages)
        self._messages.clear()
        self._bytes = 0
        return count

    def take_expired(self) -> int:
        """How many grew too old since this was asked last."""
        expired, self.expired = self.expired, 0
        return expired
