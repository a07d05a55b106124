"""The blocking API of channels: the Channel object, and the bus's verbs that manage channels.

A driver: each call runs that of the asyncio API in the loop thread. sync/bus.py inherits the verbs. Invariant: the
asyncio channel knows the messages that were fetched and not delivered. It gives them back when it is closed, and drops
them when its connection is lost.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from weakref import ref

from busway.client import bus as asynchronous
from busway.client.channels.acks import AckOutcome
from busway.client.channels.admin import ChannelOptions, ChannelSettings, kind_and_names
from busway.client.channels.channel import Channel as AsyncChannel
from busway.client.channels.dead_letters import LAST, ListOptions, Progress, RedriveOptions, Since
from busway.client.channels.positions import Start
from busway.client.connection.delegates import ChannelProperties
from busway.client.typed_wrappers.channel import handling, reading
from busway.common.durations import Duration
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import Closed, PayloadError, Timeout
from busway.message import Message
from busway.streams import ChannelInfo
from busway.sync.portal import Portal
from busway.sync.subscription import Registration, signed_as
from busway.sync.threads import in_threads
from busway.sync.typed_channel import Delivered, TypedChannel

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

_FETCH: Final = 64
"""Most messages that recv() fetches from the loop thread at once."""


class Channel(Registration, ChannelProperties):
    """A consumer of a channel: iterate, recv(), take() or batches(), then ack() each message. Threads may share it."""

    _inner: AsyncChannel

    def __init__(self, portal: Portal, inner: AsyncChannel, pool: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, pool)
        self._inner = inner
        self._fetched: deque[Message] = inner.ahead
        inner.owner = ref(self)  # message.ack() in any thread calls this object

    # Receiving.

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.recv()
            except Closed:
                if self._inner.closed:
                    return
                raise
            yield message

    def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout if none arrives in time."""
        while True:
            try:
                return self._fetched.popleft()
            except IndexError:
                self._fetch(min(self._inner.window or 1, _FETCH), timeout, whole=False)

    def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Message]:
        """At least one and at most `most` messages; with `whole` exactly `most`, unless the timeout ends first."""
        while True:
            if not self._fetched or (whole and len(self._fetched) < most):
                self._fetch(most, timeout, whole=whole)
            batch: list[Message] = []
            try:
                while len(batch) < most:
                    batch.append(self._fetched.popleft())
            except IndexError:
                if not batch:  # another thread took them
                    continue
            return batch

    def batches(self, most: int = 64) -> Iterator[list[Message]]:
        """Lists of at most `most` messages, until the channel is closed."""
        while True:
            try:
                batch = self.take(most)
            except Closed:
                if self._inner.closed:
                    return
                raise
            yield batch

    def _fetch(self, most: int, timeout: Duration | None, *, whole: bool) -> None:
        async def fetch() -> None:
            # Stored before the caller is woken: an interrupt in between must not lose the messages.
            fetched = self._fetched
            try:
                fetched.extend(await self._inner.take(max(most - len(fetched), 1), timeout, whole=whole))
            except Timeout:
                if not fetched:
                    raise

        self._portal.call(fetch)

    # Acknowledging.

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """Acknowledge messages; returns when the broker has stored that. Raises AckLate if one was redelivered."""
        self._acknowledge(self._inner.ack, messages)

    def nack(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> None:
        """Report that processing failed. The messages are redelivered after the delay or the channel's backoff."""
        self._acknowledge(lambda given: self._inner.nack(given, delay, reason), messages)

    def reject(self, messages: Message | Iterable[Message], reason: str) -> None:
        """Move messages that no consumer can process to the dead-letter topic at once, with this reason."""
        self._acknowledge(lambda given: self._inner.reject(given, reason), messages)

    def refuse(self, message: Message, error: PayloadError) -> None:
        """Report a payload that does not fit its type, and move the message to the dead-letter topic at once."""

        async def refused() -> None:
            self._inner.refuse(message, error)

        self._portal.call(refused)

    def put_back(self, batch: list[Message]) -> None:
        """Return messages that were taken; the next take() gets them first."""
        self._fetched.extendleft(reversed(batch))

    def extend(self, messages: Message | Iterable[Message]) -> None:
        """Extend the leases of messages that are still in work."""
        self._acknowledge(self._inner.extend, messages)

    def _acknowledge(self, verb: Callable[[list[Message]], AckOutcome], messages: Message | Iterable[Message]) -> None:
        given = [messages] if isinstance(messages, Message) else list(messages)

        async def called() -> None:
            await verb(given)

        self._portal.call(called)

    # The channel itself.

    @property
    def pending(self) -> int:
        """Number of messages that have arrived and were not taken yet."""
        return self._inner.pending + len(self._fetched)

    def seek(self, start: Start) -> int:
        """Move the channel to another position, for all its consumers. Returns the offset."""
        return self._portal.call(lambda: self._inner.seek(start))

    def dead(self, **chosen: "Unpack[ListOptions]") -> list[DeadLetter]:
        """The last dead letters of the channel, with the arguments of Bus.dead_letters()."""
        return self._portal.call(lambda: self._inner.dead(**chosen))

    def redrive(
        self,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None,
        **chosen: "Unpack[RedriveOptions]",
    ) -> Redrive:
        """Redrive dead letters to the channel, each once, with the arguments of Bus.redrive_channel()."""
        return self._portal.call(lambda: self._inner.redrive(letters, **chosen))

    def pause(self) -> None:
        """Deliver nothing to any consumer until resume()."""
        self._portal.call(self._inner.pause)

    def resume(self) -> None:
        """Deliver again after pause()."""
        self._portal.call(self._inner.resume)

    def info(self) -> ChannelInfo:
        """Its settings and figures, such as its position and the messages in flight."""
        return self._portal.call(self._inner.info)

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


class ChannelVerbs:
    """The bus's verbs that consume and manage channels and their dead letters."""

    _portal: Portal
    _inner: asynchronous.Bus

    @overload
    def channel(
        self,
        stream: str,
        name: str,
        *,
        handler: Callable[[Message], object] | None = None,
        **options: "Unpack[ChannelOptions]",
    ) -> Channel: ...
    @overload
    def channel(
        self,
        protocol: type[T],
        stream: str,
        name: str,
        /,
        *,
        handler: Callable[[Delivered[T]], object] | None = None,
        **options: "Unpack[ChannelOptions]",
    ) -> TypedChannel[T]: ...
    @signed_as(asynchronous.Bus.channel)
    def channel(
        self,
        stream: Any,
        name: str,
        channel: str | None = None,
        *,
        handler: Any = None,
        concurrency: int = 1,
        **options: Any,
    ) -> Channel | TypedChannel[Any]:
        """Consume a channel of a stream; delivery starts at once. A handler runs in `concurrency` threads."""
        called, pool = in_threads("handler", handler, concurrency)
        kind, stream, name = kind_and_names(stream, name, channel)
        read: Callable[[Message], Delivered[Any]] | None = None
        if kind is not None:
            read = reading(kind, Delivered)
            options["topic"] = kind.channel_topic(options.get("topic"))
            called = None if called is None else handling(read, called)

        async def consumed() -> Channel:
            inner = self._inner.channel(stream, name, handler=called, concurrency=concurrency, **options)
            channel = Channel(self._portal, inner, pool)
            await inner.start()
            return channel

        consumer = self._portal.call(consumed)
        return consumer if read is None else TypedChannel(consumer, read)

    def create_channel(
        self, stream: str, name: str, *, start: Start | None = None, **settings: "Unpack[ChannelSettings]"
    ) -> ChannelInfo:
        """Create a channel without consuming it. An existing channel gets these settings."""
        return self._portal.call(lambda: self._inner.create_channel(stream, name, start=start, **settings))

    def update_channel(self, stream: str, name: str, **settings: "Unpack[ChannelSettings]") -> ChannelInfo:
        """Change these settings of a channel."""
        return self._portal.call(lambda: self._inner.update_channel(stream, name, **settings))

    def seek_channel(self, stream: str, name: str, start: Start) -> int:
        """Move a channel to another position, for all its consumers. Returns the offset."""
        return self._portal.call(lambda: self._inner.seek_channel(stream, name, start))

    def dead_letters(
        self,
        stream: str,
        channel: str,
        *,
        last: int | None = LAST,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        redriven: bool = False,
    ) -> list[DeadLetter]:
        """The `last` dead letters of a channel, oldest first; None: all. Redriven ones only with `redriven`."""
        return self._portal.call(
            lambda: self._inner.dead_letters(
                stream, channel, last=last, topic=topic, reason=reason, since=since, redriven=redriven
            )
        )

    def redrive_channel(
        self,
        stream: str,
        channel: str,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None,
        *,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        progress: Progress | None = None,
    ) -> Redrive:
        """Redrive dead letters to the channel, each once: these, or all that match the filters.

        An interrupted redrive can be repeated.
        """
        return self._portal.call(
            lambda: self._inner.redrive_channel(
                stream, channel, letters, topic=topic, reason=reason, since=since, progress=progress
            )
        )

    def remove_channel(self, stream: str, name: str) -> ChannelInfo:
        """Remove a channel. Returns its last settings. The messages stay in the stream."""
        return self._portal.call(lambda: self._inner.remove_channel(stream, name))

    def channel_info(self, stream: str, name: str) -> ChannelInfo:
        """Settings and figures of a channel, summed over all nodes of a cluster and per node."""
        return self._portal.call(lambda: self._inner.channel_info(stream, name))

    def channels(self, stream: str) -> list[ChannelInfo]:
        """The channels of a stream, by name, with figures summed over all nodes of a cluster."""
        return self._portal.call(lambda: self._inner.channels(stream))
