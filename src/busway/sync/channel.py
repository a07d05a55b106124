"""Channels of the blocking API, which fetch messages ahead for the threads that take them.

A driver, made by the blocking bus. Invariant: the asyncio channel knows the messages that were fetched and not
delivered. It gives them back when it is closed, and drops them when its connection is lost.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import ref

from busway.client.channels.channel import Channel as AsyncChannel
from busway.client.connection.delegates import ChannelProperties
from busway.common.durations import Duration
from busway.errors import Closed, PayloadError, Timeout
from busway.message import Message
from busway.sync.base import Registration
from busway.sync.generated.channel import ConsumerVerbs
from busway.sync.portal import Portal

_FETCH: Final = 64
"""Most messages that recv() fetches from the loop thread at once."""


class Channel(ConsumerVerbs, Registration[AsyncChannel], ChannelProperties):
    """A consumer of a channel: iterate, recv(), take() or batches(), then ack() each message. Threads may share it."""

    _inner: AsyncChannel

    def __init__(self, portal: Portal, inner: AsyncChannel, pool: ThreadPoolExecutor | None) -> None:
        Registration.__init__(self, portal, inner, pool)
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

    def put_back(self, batch: list[Message]) -> None:
        """Return messages that were taken; the next take() gets them first."""
        self._fetched.extendleft(reversed(batch))

    def refuse(self, message: Message, error: PayloadError) -> None:
        """Report a payload that does not fit its type, and move the message to the dead-letter topic at once."""
        self._portal.run(self._inner.refuse, message, error)

    @property
    def pending(self) -> int:
        """Number of messages that have arrived and were not taken yet."""
        return self._inner.pending + len(self._fetched)
