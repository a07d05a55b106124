"""What lies ahead of a channel: what it has found in its stream and not handed out yet, and where it looks next.

A machine for `channels`, without a clock. It knows what was done and how often things were handed out before the channel was
opened, and leaves out or marks what it finds accordingly.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from busway.broker.channels.state.progress import ChannelState, Span

Keys: TypeAlias = Sequence[int | None]
"""For each message its key, which messages with the same order have in common; None: it has none."""


class Backlog:
    """From the cursor on."""

    def __init__(self, past: ChannelState) -> None:
        self.past = past
        self.scanned = past.floor
        """Where the next look begins."""
        self.ready: deque[tuple[int, int, int]] = deque()
        """Found: start, end, deliveries before this channel was opened."""
        self.keys: dict[int, int] = {}
        """In a channel with `order_by`: the keys of those that are ready and have one."""
        self.fresh = 0
        """How many messages are ready. Whoever takes some out keeps it right."""
        self.looking = 0
        """The ticket of the look that is under way, or 0."""
        self._tickets = 0
        self._stalled = False

    @property
    def cursor(self) -> int:
        """Nothing from here on was handed out."""
        return self.ready[0][0] if self.ready else self.scanned

    def look(self, safe: int) -> bool:
        """Begin to look for more, if there can be more and none is ready; there is one look at a time."""
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
        """What a look has found, with keys each message by itself; False if that is of no interest any more."""
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
        self.fresh = sum(one[1] - one[0] for one in self.ready)
        self.scanned = max(self.scanned, next_)
        return True

    def more(self) -> None:
        """The stream has grown: a look that found nothing may find something now."""
        self._stalled = False

    def trim(self, first: int) -> list[Span]:
        """Nothing below this offset is there any more; what was not done of it."""
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

    def again(self, offset: int) -> None:
        """Look anew from here on."""
        self.scanned, self.looking, self.fresh, self._stalled = offset, 0, 0, False
        self.ready.clear()
        self.keys.clear()

    def done_before(self, safe: int) -> int:
        """How many messages between the cursor and this offset were done before the channel was opened."""
        return sum(end - start for start, end, done in self.past.done.pieces(self.cursor, safe) if done)

    def _left(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """What of this was not done before, and how often it was handed out."""
        return [
            (low, high, times)
            for at, upto, done in self.past.done.pieces(start, end)
            if not done
            for low, high, times in self.past.deliveries.pieces(at, upto)
        ]
