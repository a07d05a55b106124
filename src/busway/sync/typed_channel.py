"""Typed channels of the blocking API.

A driver, made by the blocking bus. It wraps the blocking channel, so that acknowledgements work in any thread.
"""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from busway.client.channels.positions import Start
from busway.client.connection.delegates import ChannelProperties
from busway.client.typed.protocol import Received
from busway.client.typed_wrappers.channel import Given, fitting, plain
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import Timeout
from busway.message import Message
from busway.streams import ChannelInfo
from busway.sync.subscription import Closable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from busway.client.channels.dead_letters import ListOptions, RedriveOptions
    from busway.dead_letters import DeadLetter, Redrive
    from busway.sync.channel import Channel

T = TypeVar("T")


class Delivered(Received[T]):
    """A typed message of a channel, which unpacks as `topic, value = delivered` and has to be acknowledged."""

    def ack(self) -> None:
        """Acknowledge the message; returns when the broker has stored that."""
        self.message.ack()

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Report that processing failed. The message is redelivered after the delay or the channel's backoff."""
        self.message.nack(delay, reason)

    def reject(self, reason: str) -> None:
        """Move the message to the dead-letter topic at once: no consumer can process it."""
        self.message.reject(reason)

    def extend(self) -> None:
        """Extend the lease of the message, which is still in work."""
        self.message.extend()


class TypedChannel(Closable, ChannelProperties, Generic[T]):
    """A channel of Delivered[T]. A payload that does not fit the type goes to the dead-letter topic at once."""

    _inner: "Channel"

    def __init__(self, inner: "Channel", read: Callable[[Message], Delivered[T]]) -> None:
        self._inner = inner
        self._read = read

    # Receiving.

    def __iter__(self) -> Iterator[Delivered[T]]:
        for message in self._inner:
            yield from self._fitting([message])

    def recv(self, timeout: Duration | None = None) -> Delivered[T]:
        """The next message that fits. Raises Timeout if none arrives in time."""
        return self.take(1, timeout)[0]

    def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Delivered[T]]:
        """At least one and at most `most` messages; with `whole` exactly `most`, unless the timeout ends first."""
        timeout = check_timeout("timeout", timeout)
        until = None if timeout is None else monotonic() + timeout
        found: list[Delivered[T]] = []
        while not found or (whole and len(found) < most):
            left = None if until is None else max(until - monotonic(), 0.0)
            try:
                batch = self._inner.take(most - len(found), left, whole=whole)
            except Timeout:
                if not found:
                    raise Timeout(f"nothing to take from '{self.stream}/{self.name}' within {timeout:g} s") from None
                break
            except BaseException:
                self._inner.put_back([delivered.message for delivered in found])
                raise
            found += self._fitting(batch)
        return found

    def batches(self, most: int = 64) -> Iterator[list[Delivered[T]]]:
        """Lists of at most `most` messages, until the channel is closed."""
        for batch in self._inner.batches(most):
            if found := self._fitting(batch):
                yield found

    def _fitting(self, batch: list[Message]) -> list[Delivered[T]]:
        return fitting(batch, self._read, self._inner.refuse)

    # Acknowledging.

    def ack(self, messages: Given[T]) -> None:
        """Acknowledge messages; returns when the broker has stored that. Raises AckLate if one was redelivered."""
        self._inner.ack(plain(messages))

    def nack(self, messages: Given[T], delay: Duration | None = None, reason: str | None = None) -> None:
        """Report that processing failed. The messages are redelivered after the delay or the channel's backoff."""
        self._inner.nack(plain(messages), delay, reason)

    def reject(self, messages: Given[T], reason: str) -> None:
        """Move messages that no consumer can process to the dead-letter topic at once, with this reason."""
        self._inner.reject(plain(messages), reason)

    def extend(self, messages: Given[T]) -> None:
        """Extend the leases of messages that are still in work."""
        self._inner.extend(plain(messages))

    # The channel itself.

    def seek(self, start: Start) -> int:
        """Move the channel to another position, for all its consumers. Returns the offset."""
        return self._inner.seek(start)

    def dead(self, **chosen: "Unpack[ListOptions]") -> "list[DeadLetter]":
        """The last dead letters of the channel, with the arguments of Bus.dead_letters()."""
        return self._inner.dead(**chosen)

    def redrive(
        self,
        letters: "DeadLetter | str | Iterable[DeadLetter | str] | None" = None,
        **chosen: "Unpack[RedriveOptions]",
    ) -> "Redrive":
        """Redrive dead letters to the channel, each once, with the arguments of Bus.redrive_channel()."""
        return self._inner.redrive(letters, **chosen)

    def pause(self) -> None:
        """Deliver nothing to any consumer until resume()."""
        self._inner.pause()

    def resume(self) -> None:
        """Deliver again after pause()."""
        self._inner.resume()

    def info(self) -> ChannelInfo:
        """Its settings and figures, summed over all nodes."""
        return self._inner.info()

    def close(self) -> None:
        """Receive no more, like close() of an untyped channel."""
        self._inner.close()

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"
