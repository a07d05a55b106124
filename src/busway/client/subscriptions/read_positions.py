"""The read positions of one subscription: how far its consumers have come in each stream, and where it resumes.

The subscription and its inbox reader call this for subscriptions with `since`.
"""

from busway._core import Message, furthest
from busway.common import environment
from busway.positions import Position, Positions, since_again


class ReadPositions:
    """The next offset of each stream, by broker and stream."""

    def __init__(self, since: bytes) -> None:
        self._since = since
        """The start that the program asked for, as it is sent; empty: live messages only."""
        self._opened = environment.time_ns()
        self._begun: dict[tuple[str, str], int] = {}
        """The offset at which the stored messages begin, or continue after a gap."""
        self._next: dict[tuple[str, str], int] = {}
        """The offset after the last message that a consumer got."""
        self._last: list[Message] = []
        """The reader's current batch, of which consumers may have got only some."""

    def begin(self, place: Position, count: int) -> None:
        """Record that the stored messages begin, or continue, `count` messages behind `place`."""
        key = place.broker, place.stream
        self._begun[key] = max(self._begun.get(key, 0), place.offset + count)

    def refilled(self, batch: list[Message]) -> None:
        """Record that the current batch was used up, and that this one follows."""
        self.got(self._last)
        self._last = batch

    def got(self, batch: list[Message]) -> None:
        """Record that consumers got these messages."""
        for place, following in furthest(batch):
            self._next[place] = following

    def reached(self, unread: int) -> Positions:
        """The positions behind the messages that consumers got; `unread` of the current batch are not among them."""
        self.got(self._last[: len(self._last) - unread])
        return Positions({**self._begun, **self._next})

    def resume(self, arrived: list[tuple[tuple[str, str], int]]) -> bytes:
        """The start after a reconnect: behind the messages that have arrived, else the start of the program."""
        reached = dict(self._begun)
        for place, following in arrived:
            reached[place] = max(reached.get(place, 0), following)
        return since_again(reached, self._since, self._opened) if reached else self._since
