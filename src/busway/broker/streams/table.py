"""The table of a broker's streams, by name. The manager changes it; channels, replays and the admin services read it."""

from typing import TYPE_CHECKING

from busway._core import matches
from busway.errors import Code, DataFailed, Rejected
from busway.streams import Store

if TYPE_CHECKING:
    from busway.broker.streams.stream import Stream


class Changes:
    """Counts how often a stream was created, changed or removed."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class StreamTable:
    """The streams of one broker, and those that it can't open."""

    def __init__(self, best: Store) -> None:
        self.best = best
        """The default store of a stream."""
        self.by_name: dict[str, Stream] = {}
        self.damaged: dict[str, str] = {}
        """Streams that can't be opened, with the reason."""
        self.changes = Changes()
        self._numbers = 0

    def get(self, name: str) -> "Stream":
        """The stream of this name. Raises Rejected, or DataFailed if the stream is damaged."""
        if (stream := self.by_name.get(name)) is None:
            self.refuse_damaged(name)
            raise Rejected(f"there is no stream {name!r}", code=Code.NO_STREAM)
        return stream

    def refuse_damaged(self, name: str) -> None:
        """Raise DataFailed if the stream can't be opened."""
        if (reason := self.damaged.get(name)) is not None:
            raise DataFailed(f"{reason}; mend or remove it, and restart the broker")

    def taking(self, topic: str) -> "Stream | None":
        """The stream whose patterns claim a topic; None: the default stream takes it."""
        for stream in self.by_name.values():
            if any(matches(topic, pattern) for pattern in stream.config.topics):
                return stream
        return None

    def number(self) -> int:
        """A number that no other stream has."""
        self._numbers += 1
        return self._numbers - 1
