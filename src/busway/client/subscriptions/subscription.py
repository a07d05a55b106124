"""A subscription: the messages whose topics match one pattern. `Bus.subscribe()` makes it.

A Subscription has a Registration, which knows whether the broker has it, and an InboxReader, which takes its messages.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from busway import arrow as arrow_columns
from busway._core import Message
from busway.arrow import PLACED
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.log_lines import GONE
from busway.client.connection.registration import WAIT, Entered, Registration
from busway.client.subscriptions.inbox import Handler, HandlerTasks, InboxProperties, InboxReader, call_handler
from busway.client.subscriptions.local_rules import LocalRules, check_local
from busway.client.subscriptions.read_positions import ReadPositions
from busway.common.checks import check_count, check_seconds, check_type
from busway.common.durations import Duration
from busway.errors import BusError
from busway.fields import Compiled
from busway.positions import Position, Positions
from busway.settings import POLICIES, MiB, Policy, Scope, Wait, check_scope, check_wait

if TYPE_CHECKING:
    import pyarrow as pa

_NO_ECHO: Final = 0x01
_WATCH: Final = 0x02
_LISTEN: Final = 0x04
_SINCE: Final = 0x08
_SCOPE: Final = 4
"""The position of the scope's lowest bit."""


class SubscriptionRegistrar:
    """Encodes SUBSCRIBE and UNSUBSCRIBE for one subscription."""

    noun = "subscription"

    def __init__(
        self,
        core: Core,
        pattern: str,
        *,
        group: str,
        flags: int,
        policy: int,
        rules: bytes,
        notify: bool,
        positions: ReadPositions,
        known: bool,
    ) -> None:
        self._core = core
        self._pattern = pattern
        self._group = group
        self._flags = flags
        self._policy = policy
        self._rules = rules
        self._notify = notify
        self._positions = positions
        self._known = known
        """Whether the broker answers the first SUBSCRIBE only when all nodes know of it."""

    def announce(self, number: int, *, again: bool) -> int:
        frame = self._core.session.subscribe(
            number,
            self._pattern,
            group=self._group,
            flags=self._flags | WAIT * (self._known and not again),
            policy=self._policy,
            rules=self._rules,
            notify=self._notify,
            since=self._positions.resume(self._core.session.reached(number)),
        )
        self._core.flow_control.renew(number)
        return frame

    def withdraw(self, number: int) -> int:
        return self._core.session.unsubscribe(number)

    def forget(self, number: int) -> None:
        if self._core.subscriptions.pop(number, None) is not None:
            self._forget(number)

    def drop(self, number: int) -> None:
        if self._core.greeted:
            self._core.session.unsubscribe(number)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._core.session.forget(number)
        self._core.flow_control.forget(number)


class Subscription(Entered, InboxProperties):
    """Made by `bus.subscribe(...)`. Iterate over it, or use recv(), take() or batches()."""

    def __init__(
        self,
        core: Core,
        pattern: str,
        *,
        rules: Compiled = Compiled(b""),  # noqa: B008, it never changes
        notify: bool = False,
        watch: bool = False,
        listen: bool = False,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        handler: Handler | None = None,
        concurrency: int = 1,
        drain: float = 0.0,
        patience: Duration = 5.0,
        since: bytes = b"",
        scope: Scope = "global",
        wait: Wait | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")
        check_count("limit", limit)
        check_count("limit_bytes", limit_bytes)
        patience = check_seconds("patience", patience)
        check_type("group", group, str, "a str")
        check_wait(wait)
        if rules.local:
            check_local(rules, group)
        check_count("concurrency", concurrency)
        scope_bits = check_scope(scope) << _SCOPE
        if since and group:
            raise ValueError(
                "since= and group= can't be combined; to share stored messages among consumers use a channel"
            )
        self.pattern = pattern
        self.group = group
        self.policy: Policy = policy
        self.patience = patience
        self.notify = bool(notify)
        self.handled = handler is not None
        self.lost = 0
        """Stored messages that this subscription should have got and that are lost. `bus.events()` reports each gap."""
        self.interrupted = 0
        """How often its connection was lost, or its server's link to another server.

        It has missed what others published until the connection was restored, except retained and stored messages.
        """
        # A push can't be refused after it was delivered. So a subscription with local rules is no consumer of pushes.
        consumer = not (listen or rules.local)
        flags = _NO_ECHO * (not echo) | _WATCH * bool(watch) | _LISTEN * (not consumer) | _SINCE * bool(since)
        self._core = core
        self._scope = scope
        self._since = bool(since)
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._drain = drain
        self._positions = ReadPositions(since)
        registrar = SubscriptionRegistrar(
            core,
            pattern,
            group=group,
            flags=flags | scope_bits,
            policy=POLICIES.index(policy),
            rules=rules.wire,
            notify=self.notify,
            positions=self._positions,
            known=wait is not None,
        )
        self._registration = Registration(core, registrar, pattern, drain)
        self._reader = InboxReader(
            core,
            self._registration,
            accepts=LocalRules(core, pattern, rules, listen=bool(listen)).accepts if rules.local else None,
            on_refill=self._positions.refilled if since else None,
            on_batch=self._positions.got if since else None,
        )
        self._handlers: HandlerTasks | None = None
        if handler is not None:
            handle = partial(call_handler, core, pattern, handler)
            self._handlers = HandlerTasks(core, self._registration, self._reader, handle, concurrency)

    # Receiving.

    async def start(self) -> Self:
        """Register with the broker. Messages are delivered after this."""
        core = self._core
        number = self._registration.begin()
        policy = POLICIES.index(self.policy)
        self._reader.open(
            core.session.inbox(number, messages=self._limit, bytes=self._limit_bytes, policy=policy),
        )
        core.subscriptions[number] = self
        if self._handlers is not None:
            core.held.add(self)
        try:
            await self._registration.register()
        except BaseException:
            self.ended(None)
            raise
        if self._handlers is not None:
            self._handlers.start()
        return self

    async def close(self) -> None:
        """Withdraw it. The handler gets the messages that have arrived, within the drain time.

        Messages that no consumer took can still be received.
        """
        try:
            await self._registration.close(self._finish)
        finally:
            self._core.held.discard(self)

    async def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or the error that ended the subscription."""
        return await self._reader.recv(timeout)

    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Message]:
        """At least one message and at most so many; raises as recv() does."""
        return await self._reader.take(most, timeout)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._reader.each(self)

    def batches(self, most: int = 4096) -> AsyncGenerator[list[Message], None]:
        """Lists of at most so many messages: the fast way to take many."""
        return self._reader.batches(most, self)

    def arrow(
        self, most: int = 4096, *, within: Duration = 0.1, columns: Sequence[str] = PLACED
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        """As batches(), but an async iterator over Arrow record batches with these columns; needs `busway[arrow]`.

        A batch has at most so many rows, and comes at most `within` seconds after its first message. The columns are
        those of Stream.arrow(); a message that is not stored has no `broker`, `stream`, `offset`, `sequence` and
        `stored`.
        """
        arrow_columns.arrow()
        check_count("most", most)
        return self._arrow(most, check_seconds("within", within), arrow_columns.check_columns(columns))

    async def _arrow(
        self, most: int, within: float, columns: tuple[str, ...]
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        while True:
            # Messages stay in the inbox until the batch is due, so a cancelled consumer loses none.
            if within and 0 < self.pending < most:
                await asyncio.sleep(within)
            if batch := self._reader.batch(most):
                made = arrow_columns.message_batch(batch, columns)
                if made.num_rows:
                    yield made
            elif not self.pending and not await self._registration.wait(None):
                return

    @property
    def position(self) -> Positions:
        """How far its consumers have come. Given as `since`, a later subscription resumes from there."""
        return self._positions.reached(self._reader.unread)

    # Called by the core, the lifecycle and the reclaim.

    def announce(self) -> int:
        """Encode the frame that registers it, at first or after a reconnect. Returns the frame's number."""
        return self._registration.announce()

    def arrived(self) -> None:
        """Wake the consumers: the inbox was empty and has messages now."""
        self._registration.wake()

    def gap(self, place: Position, count: int) -> None:
        """Record and report that this many messages from `place` on are lost; 0: stored messages begin there."""
        self._positions.begin(place, count)
        if count:
            self.lost += count
            self._core.log_lines.missed(self.pattern, count, GONE)
            self._core.events.emit(Event(kind="gap", topic=self.pattern, count=count))

    def restored(self) -> None:
        """Count a reconnect, after which the broker has registered it again."""
        self.interrupted += 1

    def apart(self) -> bool:
        """Count a lost link between its server and another one. Returns whether it may have missed messages."""
        if self._scope == "local" or not self.plain:
            return False
        self.interrupted += 1
        return True

    @property
    def plain(self) -> bool:
        """Whether it gets live messages only, so that it does not catch up after a reconnect."""
        return not self._since

    def ended(self, error: BusError | None) -> None:
        """End it. Consumers get the error after the messages that have arrived."""
        self._core.held.discard(self)
        self._registration.end(error)

    async def _finish(self) -> None:
        if self._handlers is not None:
            await self._handlers.finish(self._drain)
