"""The blocking API of streams: the Stream object, and the bus's verbs that manage streams.

A driver: each call runs that of the asyncio API in the loop thread. sync/bus.py inherits the verbs.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from busway.client import bus as asynchronous
from busway.client.streams.reader import Place
from busway.client.streams.stream import COLUMNS, Stream as AsyncStream
from busway.fields import Where
from busway.message import Message
from busway.streams import Safety, Store, StoredTopic, StreamInfo
from busway.sync.portal import Portal

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Stream:
    """A stream of the broker; made by `bus.create_stream()` and `bus.stream()`."""

    def __init__(self, portal: Portal, inner: AsyncStream) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def broker(self) -> str:
        """Guid of the broker that stores this part of the stream."""
        return self._inner.broker

    @property
    def lost(self) -> int:
        """Number of messages that reads of this object missed, since the stream no longer has them."""
        return self._inner.lost

    def info(self, *, parts: bool = False) -> StreamInfo:
        """Current settings and figures of this part of the stream; with `parts` also the figures of each node."""
        return self._portal.call(lambda: self._inner.info(parts=parts))

    def topics(self, pattern: str = "**") -> list[StoredTopic]:
        """The matching topics with the figures of their stored messages, ordered by topic."""
        return self._portal.call(lambda: self._inner.topics(pattern))

    def find(self, topic: str, sequence: int) -> int | None:
        """Offset of the first message of a topic with this sequence or a later one; None if there is none."""
        return self._portal.call(lambda: self._inner.find(topic, sequence))

    def locate(self, place: Place) -> int:
        """The offset of a place; for a time that of the first message stored then or later."""
        return self._portal.call(lambda: self._inner.locate(place))

    def read(
        self,
        from_: Place | None = None,
        to: Place | None = None,
        *,
        topic: str = "**",
        where: Where | None = None,
        batch: int = 1024,
    ) -> Generator[list[Message], None, None]:
        """Stored messages up to the present end of the stream, as an iterator over lists of at most `batch`."""
        return _generated(self._portal, lambda: self._inner.read(from_, to, topic=topic, where=where, batch=batch))

    def arrow(
        self,
        from_: Place | None = None,
        to: Place | None = None,
        *,
        topic: str = "**",
        where: Where | None = None,
        columns: Sequence[str] = COLUMNS,
        expired: bool = False,
    ) -> "Generator[pa.RecordBatch, None, None]":
        """Like read(), but an iterator over Arrow record batches with these columns; needs `busway[arrow]`."""
        return _generated(
            self._portal,
            lambda: self._inner.arrow(from_, to, topic=topic, where=where, columns=columns, expired=expired),
        )

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


def _generated(portal: Portal, make: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
    """A blocking generator over an async one. Wrong arguments raise at the call, as in the asyncio API."""

    async def made() -> AsyncGenerator[T, None]:
        return make()

    return _each(portal, portal.call(made))


def _each(portal: Portal, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                item = portal.call(items.__anext__)
            except StopAsyncIteration:
                return
            yield item
    finally:
        portal.call(items.aclose)


class StreamVerbs:
    """The bus's verbs that create, change, remove, list and open streams."""

    _portal: Portal
    _inner: asynchronous.Bus

    def create_stream(
        self,
        name: str,
        topics: Iterable[str],
        *,
        store: Store | None = None,
        safety: Safety = "written",
        max_age: float | str | timedelta | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        once: float | str | timedelta = "15m",
        retain_until: str | None = None,
        note: str = "",
    ) -> Stream:
        """Create a stream that stores durable publishes on these topics. It may exist with the same settings."""
        patterns = topics if isinstance(topics, str) else list(topics)  # a generator has to run in the caller's thread
        inner = self._portal.call(
            lambda: self._inner.create_stream(
                name,
                patterns,
                store=store,
                safety=safety,
                max_age=max_age,
                max_bytes=max_bytes,
                max_count=max_count,
                once=once,
                retain_until=retain_until,
                note=note,
            )
        )
        return Stream(self._portal, inner)

    def update_stream(self, name: str, **changes: Any) -> Stream:
        """Change these settings of a stream, by their names in create_stream()."""
        return Stream(self._portal, self._portal.call(lambda: self._inner.update_stream(name, **changes)))

    def remove_stream(self, name: str) -> StreamInfo:
        """Remove a stream with all its messages. Returns its last settings."""
        return self._portal.call(lambda: self._inner.remove_stream(name))

    def streams(self, *, parts: bool = False) -> list[StreamInfo]:
        """All streams of the broker, by name; with `parts` also the figures of each node of its cluster."""
        return self._portal.call(lambda: self._inner.streams(parts=parts))

    def stream(self, name: str, *, broker: str | None = None) -> Stream:
        """Open a stream for queries and reads: the part of the broker, or that of the node with the guid `broker`."""
        return Stream(self._portal, self._portal.call(lambda: self._inner.stream(name, broker=broker)))
