"""The backlog of a channel: messages that were found in the stream and not delivered yet, and the offset to read next.

This is a machine without a clock, used by `state.channel`. It has the recorded progress from before the channel was
opened, so it leaves out messages that are done, and marks others with their number of deliveries.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from busway.broker.channels.state.progress import ChannelState, Span

Keys: TypeAlias = Sequence[int | None]
"""The key of each message, or None. Messages with the same key are delivered in order."""


class Backlog:
    """The messages of one channel from its cursor on."""

    def __init__(self, past: ChannelState) -> None:
        self.past = past
        self.scanned = past.floor
        """The offset at which the next read begins."""
        self.ready: deque[tuple[int, int, int]] = deque()
        """Found messages: start, end, and the number of deliveries before the channel was opened."""
        self.keys: dict[int, int] = {}
        """The keys of ready messages in a channel with `order_by`, by offset."""
        self.fresh = 0
        """The number of ready messages. Code that removes some from `ready` updates it."""
        self.looking = 0
        """The ticket of the read in progress, or 0."""
        self._tickets = 0
        self._stalled = False

    @property
    def cursor(self) -> int:
        """No message from this offset on was delivered."""
        return self.ready[0][0] if self.ready else self.scanned

    def look(self, safe: int) -> bool:
        """Begin a read if no message is ready and the stream may have more. There is one read at a time."""
        if self.looking or self.fresh or self._stalled:
            return False
        if self.past.done:
            self.scanned = self.past.done.beyond(self.scanned)
        if self.scanned >= safe:
            return False
        self._tickets += 1
        self.looking = self._tickets
        return True

    def found(self, ticket: int, spans: Iterable[Span], next_: int, keys: Keys | None = None) -> bool:
        """Add the messages that a read has found, with keys one by one. False: the read is outdated."""
        if not ticket or ticket != self.looking:
            return False
        self.looking = 0
        self._stalled = next_ <= self.scanned
        if keys is not None:
            spans = [(offset, 1) for start, count in spans for offset in range(start, start + count)]
            self.keys |= {offset: key for (offset, _), key in zip(spans, keys, strict=True) if key is not None}
        if self.past.done or self.past.deliveries:
            for start, count in spans:
                self.ready += self._left(start, start + count)
            self.past.raise_floor(self.cursor)
        else:
            self.ready += [(start, start + count, 0) for start, count in spans]
        self.fresh = sum(end - start for start, end, _ in self.ready)
        self.scanned = max(self.scanned, next_)
        return True

    def more(self) -> None:
        """The stream has grown: a read may find messages again."""
        self._stalled = False

    def trim(self, first: int) -> list[Span]:
        """The stream has dropped everything below this offset. Returns the messages that were not done."""
        lost: list[Span] = []
        while self.ready and self.ready[0][0] < first:
            start, end, times = self.ready.popleft()
            cut = min(end, first)
            lost.append((start, cut - start))
            self.fresh -= cut - start
            if end > cut:
                self.ready.appendleft((cut, end, times))
        if self.scanned < first:
            pieces = self.past.done.pieces(self.scanned, first)
            lost += [(start, end - start) for start, end, done in pieces if not done]
            self.scanned, self.looking, self._stalled = first, 0, False
        if self.keys:
            self.keys = {offset: key for offset, key in self.keys.items() if offset >= first}
        self.past.raise_floor(self.cursor)
        return lost

    def reread(self, offset: int) -> None:
        """Forget all found messages, and read again from this offset."""
        self.scanned, self.looking, self.fresh, self._stalled = offset, 0, 0, False
        self.ready.clear()
        self.keys.clear()

    def done_before(self, safe: int) -> int:
        """The number of messages between the cursor and this offset that were done before the channel was opened."""
        return sum(end - start for start, end, done in self.past.done.pieces(self.cursor, safe) if done)

    def _left(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The parts of a range that were not done before, with their number of deliveries."""
        return [
            (low, high, times)
            for at, upto, done in self.past.done.pieces(start, end)
            if not done
            for low, high, times in self.past.deliveries.pieces(at, upto)
        ]
