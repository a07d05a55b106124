"""The blocking face of channels: the verbs of a bus for them, and a channel.

A driver, as sync.py, of which it is a part. Invariant: messages that were fetched and not yet handed out are known to the
asyncio channel, which gives them back when it is closed and drops them when its connection is lost.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from weakref import ref

from busway.client import bus as asynchronous
from busway.client.channels.acks import AckOutcome
from busway.client.channels.admin import ChannelOptions, kind_and_names
from busway.client.channels.channel import Channel as AsyncChannel
from busway.client.channels.dead_letters import LAST, Progress, Since
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

_AHEAD: Final = 64
"""Messages that recv() has brought over from the other thread at once."""


class Channel(Registration, ChannelProperties):
    """A channel of a stream; iterate, recv(), take() or batches(), and ack() each message. Threads may share one."""

    _inner: AsyncChannel

    def __init__(self, portal: Portal, inner: AsyncChannel, pool: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, pool)
        self._inner = inner
        self._ahead: deque[Message] = inner.ahead
        inner.owner = ref(self)  # so that message.ack() comes here, in whatever thread

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
        """The next message; Timeout if none came in time."""
        while True:
            try:
                return self._ahead.popleft()
            except IndexError:
                self._fetch(min(self._inner.window or 1, _AHEAD), timeout, whole=False)

    def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Message]:
        """At least one message and at most so many; with `whole` as many, unless the time is over before."""
        while True:
            if not self._ahead or (whole and len(self._ahead) < most):
                self._fetch(most, timeout, whole=whole)
            batch: list[Message] = []
            try:
                while len(batch) < most:
                    batch.append(self._ahead.popleft())
            except IndexError:
                if not batch:  # another thread was quicker
                    continue
            return batch

    def batches(self, most: int = 64) -> Iterator[list[Message]]:
        """Lists of at most so many messages, until the channel is closed."""
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
            # Kept there before the caller is woken: an interrupt in between must not lose what was taken.
            ahead = self._ahead
            try:
                ahead.extend(await self._inner.take(max(most - len(ahead), 1), timeout, whole=whole))
            except Timeout:
                if not ahead:
                    raise

        self._portal.call(fetch)

    # Settling.

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """These are done; returns when this is stored. AckLate if one had gone to somebody else meanwhile."""
        self._settle(self._inner.ack, messages)

    def nack(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> None:
        """These could not be dealt with: they are redelivered, after the delay, without one as the channel's backoff says."""
        self._settle(lambda given: self._inner.nack(given, delay, reason), messages)

    def reject(self, messages: Message | Iterable[Message], reason: str) -> None:
        """No consumer can deal with these: they become dead letters at once, with this reason."""
        self._settle(lambda given: self._inner.reject(given, reason), messages)

    def refuse(self, message: Message, error: PayloadError) -> None:
        """The payload of a message does not fit its type: report it and make it a dead letter at once."""

        async def refused() -> None:
            self._inner.refuse(message, error)

        self._portal.call(refused)

    def put_back(self, batch: list[Message]) -> None:
        """Messages that were taken and are for the next consumer."""
        self._ahead.extendleft(reversed(batch))

    def extend(self, messages: Message | Iterable[Message]) -> None:
        """Work on these goes on: their lease begins anew."""
        self._settle(self._inner.extend, messages)

    def _settle(self, how: Callable[[list[Message]], AckOutcome], messages: Message | Iterable[Message]) -> None:
        given = [messages] if isinstance(messages, Message) else list(messages)

        async def settled() -> None:
            await how(given)

        self._portal.call(settled)

    # The channel itself.

    @property
    def pending(self) -> int:
        """Messages that have arrived and were not taken yet."""
        return self._inner.pending + len(self._ahead)

    def seek(self, start: Start) -> int:
        """Go to another place, for all consumers; the offset."""
        return self._portal.call(lambda: self._inner.seek(start))

    def dead(self, **chosen: Any) -> list[DeadLetter]:
        """The last dead letters of the channel, as Bus.dead_letters() gives them."""
        return self._portal.call(lambda: self._inner.dead(**chosen))

    def redrive(self, letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None, **chosen: Any) -> Redrive:
        """Send dead letters back to the channel, each once, as Bus.redrive_channel() does."""
        return self._portal.call(lambda: self._inner.redrive(letters, **chosen))

    def pause(self) -> None:
        """Hand nothing out, to nobody, until resume()."""
        self._portal.call(self._inner.pause)

    def resume(self) -> None:
        self._portal.call(self._inner.resume)

    def info(self) -> ChannelInfo:
        """Its settings, where it stands, and what is on its way."""
        return self._portal.call(self._inner.info)

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


class ChannelVerbs:
    """The verbs of a bus for channels."""

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
        """Consume a channel of a stream; its messages are delivered when this returns. A handler runs in `concurrency` threads."""
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

        made = self._portal.call(consumed)
        return made if read is None else TypedChannel(made, read)

    def create_channel(self, stream: str, name: str, *, start: Start | None = None, **settings: Any) -> ChannelInfo:
        """Make a channel without consuming it; one that is there gets these settings."""
        return self._portal.call(lambda: self._inner.create_channel(stream, name, start=start, **settings))

    def update_channel(self, stream: str, name: str, **settings: Any) -> ChannelInfo:
        """Change settings of a channel; the others stay."""
        return self._portal.call(lambda: self._inner.update_channel(stream, name, **settings))

    def seek_channel(self, stream: str, name: str, start: Start) -> int:
        """Put a channel to another place, for all its consumers; the offset."""
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
        """The last dead letters of a channel, in the order in which they died; None: all. Those that were sent back are left out."""
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
        """Send dead letters back to the channel, each once: these, or all that are chosen. It may be interrupted and repeated."""
        return self._portal.call(
            lambda: self._inner.redrive_channel(
                stream, channel, letters, topic=topic, reason=reason, since=since, progress=progress
            )
        )

    def remove_channel(self, stream: str, name: str) -> ChannelInfo:
        """Remove a channel; what it was. The messages stay in the stream."""
        return self._portal.call(lambda: self._inner.remove_channel(stream, name))

    def channel_info(self, stream: str, name: str) -> ChannelInfo:
        """One channel: its settings and figures, over all nodes of a cluster and of each."""
        return self._portal.call(lambda: self._inner.channel_info(stream, name))

    def channels(self, stream: str) -> list[ChannelInfo]:
        """The channels of a stream, by name; with sums over all nodes of a cluster."""
        return self._portal.call(lambda: self._inner.channels(stream))
