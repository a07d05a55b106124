"""Subscriptions of the blocking API, which fetch messages ahead for the threads that take them.

A driver, made by the blocking bus. Invariant: a subscription keeps the messages that it fetched and has not delivered,
so an interrupt loses none.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from busway import arrow as arrow_columns
from busway.arrow import PLACED
from busway.client.connection.delegates import CounterProperties, HasCounters, position_before
from busway.client.typed.protocol import Received
from busway.common.checks import check_count, check_seconds
from busway.common.durations import Duration
from busway.errors import Closed, Timeout
from busway.message import Message
from busway.positions import Positions
from busway.sync.base import Registration
from busway.sync.portal import Portal

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class _AsyncSubscription(HasCounters, Protocol[M_co]):
    """The common methods of the asyncio Subscription and TypedSubscription."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Any]: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def pending(self) -> int: ...


class Subscription(Registration[_AsyncSubscription[M]], CounterProperties):
    """The messages of a pattern, by iteration, recv(), take() or batches().

    Threads may share a subscription: each message goes to one of them.
    """

    _inner: _AsyncSubscription[M]

    def __init__(self, portal: Portal, inner: _AsyncSubscription[M], pool: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, inner, pool)
        self._fetched: deque[M] = deque()

    def __iter__(self) -> Iterator[M]:
        while self._has_more(1024):
            try:
                message = self._fetched.popleft()
            except IndexError:
                continue  # another thread took it
            yield message

    def recv(self, timeout: Duration | None = None) -> M:
        """The next message. Raises Timeout if none arrives in time."""
        while True:
            try:
                return self._fetched.popleft()
            except IndexError:
                self._fetch(1, timeout)

    def take(self, most: int = 4096, timeout: Duration | None = None) -> list[M]:
        """At least one and at most `most` messages."""
        while not self._fetched:
            self._fetch(most, timeout)
        return self._batch(most)

    def batches(self, most: int = 4096) -> Iterator[list[M]]:
        """Lists of arrived messages, until the subscription is closed."""
        while self._has_more(most):
            if batch := self._batch(most):
                yield batch

    def arrow(
        self, most: int = 4096, *, within: Duration = 0.1, columns: Sequence[str] = PLACED
    ) -> "Iterator[pa.RecordBatch]":
        """Like batches(), but an iterator over Arrow record batches, with the arguments of the asyncio arrow()."""
        arrow_columns.arrow()
        check_count("most", most)
        return self._arrow(most, check_seconds("within", within), arrow_columns.check_columns(columns))

    def _arrow(self, most: int, within: float, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
        while self._has_more(most):
            if within and len(self._fetched) < most:
                sleep(within)
                with suppress(Timeout, Closed):
                    self._fetch(max(most - len(self._fetched), 1), 0.0)
            record_batch = arrow_columns.message_batch(map(_message_of, self._batch(most)), columns)
            if record_batch.num_rows:
                yield record_batch

    def _has_more(self, most: int) -> bool:
        """Wait for messages. False: the subscription has ended and all its messages were delivered."""
        try:
            if not self._fetched:
                self._fetch(most, None)
        except Closed:
            if self._inner.closed:
                return False
            raise
        return True

    def _batch(self, most: int) -> list[M]:
        """Remove and return up to `most` fetched messages."""
        batch: list[M] = []
        try:
            while len(batch) < most:
                batch.append(self._fetched.popleft())
        except IndexError:
            return batch
        return batch

    def _fetch(self, most: int, timeout: Duration | None) -> None:
        async def fetch() -> None:
            # Stored before the caller is woken: an interrupt in between must not lose the messages.
            self._fetched.extend(await self._inner.take(most, timeout))

        self._portal.call(fetch)

    @property
    def pending(self) -> int:
        """Number of messages that have arrived and were not taken yet."""
        return self._inner.pending + len(self._fetched)

    @property
    def position(self) -> Positions:
        """The position that its consumers have reached. A later subscription continues there with `since`."""

        async def reached() -> Positions:
            return position_before(self._inner.position, map(_message_of, list(self._fetched)))

        return self._portal.call(reached)


def _message_of(item: Any) -> Message:
    """The message of a plain or typed item of a subscription."""
    message: Message = item.message if isinstance(item, Received) else item
    return message
