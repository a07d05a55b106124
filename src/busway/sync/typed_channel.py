"""The blocking face of typed channels.

A driver, as sync.py, of which it is a part: a wrapper around the blocking channel, so that acknowledgements work in any thread.
"""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from busway.client.channels.positions import Start
from busway.client.connection.delegates import ChannelProperties
from busway.client.typed.protocol import Received
from busway.client.typed_wrappers.channel import Given, fitting, plain
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import Timeout
from busway.message import Message
from busway.streams import ChannelInfo
from busway.sync.subscription import Closing

if TYPE_CHECKING:
    from busway.dead_letters import DeadLetter, Redrive
    from busway.sync.channel import Channel

T = TypeVar("T")


class Delivered(Received[T]):
    """A typed message of a channel, to be acknowledged: `topic, value = delivered`."""

    def ack(self) -> None:
        """This is done; returns when that is stored."""
        self.message.ack()

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """It could not be dealt with: it is redelivered, after the delay or the channel's backoff."""
        self.message.nack(delay, reason)

    def reject(self, reason: str) -> None:
        """No consumer can deal with it: it becomes a dead letter at once."""
        self.message.reject(reason)

    def extend(self) -> None:
        """Work on it goes on: its lease begins anew."""
        self.message.extend()


class TypedChannel(Closing, ChannelProperties, Generic[T]):
    """A channel that gives Delivered[T]; a payload that does not fit the type becomes a dead letter at once."""

    _inner: "Channel"

    def __init__(self, inner: "Channel", read: Callable[[Message], Delivered[T]]) -> None:
        self._inner = inner
        self._read = read

    # Receiving.

    def __iter__(self) -> Iterator[Delivered[T]]:
        for message in self._inner:
            yield from self._fitting([message])

    def recv(self, timeout: Duration | None = None) -> Delivered[T]:
        """The next message that fits; Timeout if none came in time."""
        return self.take(1, timeout)[0]

    def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Delivered[T]]:
        """At least one message and at most so many; with `whole` as many, unless the time is over before."""
        timeout = check_timeout("timeout", timeout)
        until = None if timeout is None else monotonic() + timeout
        found: list[Delivered[T]] = []
        while not found or (whole and len(found) < most):
            left = None if until is None else max(until - monotonic(), 0.0)
            try:
                batch = self._inner.take(most - len(found), left, whole=whole)
            except Timeout:
                if not found:
                    raise
                break
            except BaseException:
                self._inner.put_back([one.message for one in found])
                raise
            found += self._fitting(batch)
        return found

    def batches(self, most: int = 64) -> Iterator[list[Delivered[T]]]:
        """Lists of at most so many messages, until the channel is closed."""
        for batch in self._inner.batches(most):
            if found := self._fitting(batch):
                yield found

    def _fitting(self, batch: list[Message]) -> list[Delivered[T]]:
        return fitting(batch, self._read, self._inner.refuse)

    # Settling.

    def ack(self, messages: Given[T]) -> None:
        """These are done; returns when this is stored. AckLate if one was redelivered to another consumer."""
        self._inner.ack(plain(messages))

    def nack(self, messages: Given[T], delay: Duration | None = None, reason: str | None = None) -> None:
        """These could not be dealt with: they are redelivered, after the delay or the channel's backoff."""
        self._inner.nack(plain(messages), delay, reason)

    def reject(self, messages: Given[T], reason: str) -> None:
        """No consumer can deal with these: they become dead letters at once, with this reason."""
        self._inner.reject(plain(messages), reason)

    def extend(self, messages: Given[T]) -> None:
        """Work on these goes on: their lease begins anew."""
        self._inner.extend(plain(messages))

    # The channel itself.

    def seek(self, start: Start) -> int:
        """Go to another place, for all consumers; the offset."""
        return self._inner.seek(start)

    def dead(self, **chosen: Any) -> "list[DeadLetter]":
        """The last dead letters of the channel, as Bus.dead_letters() gives them."""
        return self._inner.dead(**chosen)

    def redrive(
        self, letters: "DeadLetter | str | Iterable[DeadLetter | str] | None" = None, **chosen: Any
    ) -> "Redrive":
        """Send dead letters back to the channel, each once, as Bus.redrive_channel() does."""
        return self._inner.redrive(letters, **chosen)

    def pause(self) -> None:
        """Deliver nothing to any consumer until resume()."""
        self._inner.pause()

    def resume(self) -> None:
        """Deliver again after pause()."""
        self._inner.resume()

    def info(self) -> ChannelInfo:
        """Its settings and figures, over all nodes."""
        return self._inner.info()

    def close(self) -> None:
        """Take no more, as close() of an untyped channel."""
        self._inner.close()

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"
