"""The typed channel: a wrapper that decodes the payloads of a channel's messages.

`Bus.channel()` makes it. A message whose payload does not fit its type becomes a dead letter at once, so the consumer
gets only values.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Unpack

from busway.client.channels.dead_letters import ListOptions, RedriveOptions
from busway.client.channels.failures import Misfit
from busway.client.connection.delegates import ChannelProperties
from busway.client.subscriptions.inbox import Handler
from busway.client.typed.protocol import Kind, Received
from busway.client.typed_wrappers.wrappers import Wrapper
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import PayloadError, Timeout
from busway.message import Message
from busway.streams import ChannelInfo

if TYPE_CHECKING:
    from busway.client.channels.acks import AckOutcome
    from busway.client.channels.channel import Channel
    from busway.client.channels.positions import Start
    from busway.dead_letters import DeadLetter, Redrive

T = TypeVar("T")
R = TypeVar("R", bound=Received[object])


class Delivered(Received[T]):
    """A typed message of a channel, which the consumer acknowledges: `topic, value = delivered`."""

    def ack(self) -> Awaitable[None]:
        """Acknowledge it. Await this to know that the broker has stored it."""
        return self.message.ack()

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> Awaitable[None]:
        """Have the channel redeliver it, after the delay or the channel's backoff."""
        return self.message.nack(delay, reason)

    def reject(self, reason: str) -> Awaitable[None]:
        """Move it to the dead-letter topic at once."""
        return self.message.reject(reason)

    def extend(self) -> Awaitable[None]:
        """Restart its lease, for it is still in work."""
        return self.message.extend()


Given: TypeAlias = Message | Received[T] | Iterable[Message | Received[T]]
"""One message or several, typed or not."""


def plain(messages: "Given[T]") -> Message | list[Message]:
    """The untyped messages behind these."""
    if isinstance(messages, Message):
        return messages
    if isinstance(messages, Received):  # an iterable, too
        return messages.message
    return [item.message if isinstance(item, Received) else item for item in messages]


def fitting(
    batch: Iterable[Message], read: Callable[[Message], T], refuse: Callable[[Message, PayloadError], object]
) -> list[T]:
    """The typed messages of a batch. `refuse` is called with each message that does not fit its type."""
    found: list[T] = []
    for message in batch:
        try:
            found.append(read(message))
        except PayloadError as error:
            refuse(message, error)
    return found


def reading(kind: Kind[T], made: Callable[[str, T], R]) -> Callable[[Message], R]:
    """A function that decodes a message of a channel into a typed one."""

    def read(message: Message) -> R:
        typed = made(message.topic, kind.codec.read(message))
        typed.message = message
        return typed

    return read


def handling(read: Callable[[Message], T], handler: Callable[[T], object]) -> Handler:
    """Wrap a typed handler of a channel into one that takes messages."""

    def handle(message: Message) -> object:
        try:
            value = read(message)
        except PayloadError as error:
            raise Misfit(error) from None
        return handler(value)

    return handle


class TypedChannel(Wrapper, ChannelProperties, Generic[T]):
    """A channel of Delivered[T] messages. Iterate over it, or use recv(), take() or batches(), and ack() each message.

    A message whose payload does not fit the type becomes a dead letter at once. Its reason names the field.
    """

    _inner: "Channel"

    def __init__(self, inner: "Channel", read: Callable[[Message], Delivered[T]]) -> None:
        self._inner = inner
        self._read = read

    # Receiving.

    async def __aiter__(self) -> AsyncIterator[Delivered[T]]:
        async for message in self._inner:
            for delivered in self._fitting([message]):
                yield delivered

    async def recv(self, timeout: Duration | None = None) -> Delivered[T]:
        """The next message that fits. Raises Timeout, Closed, or the error that ended the channel."""
        return (await self.take(1, timeout))[0]

    async def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Delivered[T]]:
        """At least one message and at most so many; with `whole` so many, unless the timeout is over first."""
        timeout = check_timeout("timeout", timeout)
        clock = asyncio.get_running_loop().time
        until = None if timeout is None else clock() + timeout
        found: list[Delivered[T]] = []
        while not found or (whole and len(found) < most):
            left = None if until is None else max(until - clock(), 0.0)
            try:
                batch = await self._inner.take(most - len(found), left, whole=whole)
            except Timeout:
                if not found:
                    raise Timeout(f"nothing to take from '{self.stream}/{self.name}' within {timeout:g} s") from None
                break
            except BaseException:
                self._inner.put_back([delivered.message for delivered in found])
                raise
            found += self._fitting(batch)
        return found

    async def batches(self, most: int = 64) -> AsyncIterator[list[Delivered[T]]]:
        """Lists of at most so many messages, until the channel is closed."""
        async for batch in self._inner.batches(most):
            if found := self._fitting(batch):
                yield found

    def _fitting(self, batch: list[Message]) -> list[Delivered[T]]:
        return fitting(batch, self._read, self._inner.refuse)

    # Acknowledging.

    def ack(self, messages: Given[T]) -> "AckOutcome":
        """Acknowledge messages. Await it to know that this is stored. Raises AckLate if one had been redelivered."""
        return self._inner.ack(plain(messages))

    def nack(self, messages: Given[T], delay: Duration | None = None, reason: str | None = None) -> "AckOutcome":
        """Have failed messages redelivered, after the delay or, without one, after the channel's backoff."""
        return self._inner.nack(plain(messages), delay, reason)

    def reject(self, messages: Given[T], reason: str) -> "AckOutcome":
        """Move messages to the dead-letter topic at once, with this reason: no consumer can process them."""
        return self._inner.reject(plain(messages), reason)

    def extend(self, messages: Given[T]) -> "AckOutcome":
        """Restart the leases of messages that are still in work."""
        return self._inner.extend(plain(messages))

    # The channel itself.

    async def seek(self, start: "Start") -> int:
        """Move the channel to another place, for all consumers, as Channel.seek() does. Returns the offset."""
        return await self._inner.seek(start)

    async def dead(self, **options: Unpack[ListOptions]) -> "list[DeadLetter]":
        """The last dead letters of the channel, as from Bus.dead_letters()."""
        return await self._inner.dead(**options)

    async def redrive(
        self,
        letters: "DeadLetter | str | Iterable[DeadLetter | str] | None" = None,
        **options: Unpack[RedriveOptions],
    ) -> "Redrive":
        """Send dead letters back to the channel, each once, as Bus.redrive_channel() does."""
        return await self._inner.redrive(letters, **options)

    async def pause(self) -> None:
        """Deliver nothing to any consumer until resume()."""
        await self._inner.pause()

    async def resume(self) -> None:
        """Deliver again after pause()."""
        await self._inner.resume()

    async def info(self) -> ChannelInfo:
        """The channel's settings and figures, over all nodes."""
        return await self._inner.info()
