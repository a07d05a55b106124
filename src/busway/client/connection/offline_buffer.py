"""Offline buffer of one client: publishes that wait for a connection, in order, limited in bytes and age.

The sender adds publishes while there is no connection, and the lifecycle sends them after the reconnect.
"""

from collections import deque
from typing import NamedTuple

from busway.errors import LimitExceeded
from busway.settings import Buffer


class _Buffered(NamedTuple):
    topic: str
    payload: bytes | str
    fields: bytes
    size: int
    until: float
    scope: int


class OfflineBuffer:
    """The buffered publishes of one client. A pure state machine: its callers pass the time."""

    def __init__(self) -> None:
        self._messages: deque[_Buffered] = deque()
        self._bytes = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, topic: str, payload: bytes | str, fields: bytes, policy: Buffer, now: float, scope: int = 0) -> None:
        """Buffer a message. Raises LimitExceeded if there is no room."""
        self.expire(now)
        size = len(topic) + len(fields) + (len(payload) if isinstance(payload, bytes) else len(payload.encode()))
        if self._bytes + size > policy.bytes:
            raise LimitExceeded(
                f"publish refused: there is no connection and the offline buffer is full ({policy.bytes} bytes)"
            )
        self._messages.append(_Buffered(topic, payload, fields, size, now + policy.age, scope))
        self._bytes += size

    def expire(self, now: float) -> None:
        """Drop and count the messages that are too old."""
        messages = self._messages
        while messages and messages[0].until <= now:
            self._bytes -= messages.popleft().size
            self.expired += 1

    def take(self, now: float) -> list[tuple[str, bytes | str, bytes, int]]:
        """Empty the buffer and return the messages that are not too old, in the order of their publishing."""
        messages = [(one.topic, one.payload, one.fields, one.scope) for one in self._messages if one.until > now]
        self.expired += len(self._messages) - len(messages)
        self.clear()
        return messages

    def clear(self) -> int:
        """Drop all messages and return their number."""
        count = len(self._messages)
        self._messages.clear()
        self._bytes = 0
        return count

    def take_expired(self) -> int:
        """The number of messages that expired since the last call."""
        expired, self.expired = self.expired, 0
        return expired
