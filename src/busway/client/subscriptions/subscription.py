"""A subscription: what it asks for, and how far it has come in streams. How messages are taken is in `taking`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from operator import length_hint
from typing import TYPE_CHECKING, Final

from busway import arrow as arrow_columns
from busway._core import Message, furthest
from busway.arrow import PLACED
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.log_lines import GONE
from busway.client.connection.registration import WAIT
from busway.client.subscriptions.inbox import Handler, InboxReader
from busway.common import environment
from busway.common.checks import check_count, check_seconds, check_type
from busway.common.durations import Duration
from busway.errors import InvalidRule
from busway.fields import Compiled
from busway.positions import Position, Positions, since_again
from busway.settings import POLICIES, MiB, Policy, Scope, Wait, check_scope, check_wait

if TYPE_CHECKING:
    import pyarrow as pa

_NO_ECHO: Final = 0x01
_WATCH: Final = 0x02
_LISTEN: Final = 0x04
_SINCE: Final = 0x08
_SCOPE: Final = 4
"""The first bit of its scope."""
_COPIES: Final = {"push", "request"}


class Subscription(InboxReader):
    """Made by `bus.subscribe(...)`. Iterate over it, or use recv(), take() or batches()."""

    noun = "subscription"

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
            _check_local(rules, group)
        super().__init__(core, pattern, drain, handler=handler, concurrency=concurrency)
        self.pattern = pattern
        self.group = group
        self.policy = policy
        self._rules = rules
        self.notify = bool(notify)
        self._listen = bool(listen)
        # Who asks a predicate can't refuse a push, which was taken by then: so it is no consumer, as one who listens.
        consumer = not (listen or rules.local)
        self._flags = _NO_ECHO * (not echo) | _WATCH * bool(watch) | _LISTEN * (not consumer) | _SINCE * bool(since)
        self._flags |= check_scope(scope) << _SCOPE
        self._scope = scope
        self._known = wait is not None
        self._since = since
        self._opened = environment.time_ns()
        self._begun: dict[tuple[str, str], int] = {}
        self._next: dict[tuple[str, str], int] = {}
        self._last: list[Message] = []
        self.lost = 0
        """Stored messages that it should have got and that are gone for good; `bus.events()` tells of each gap."""
        self.interrupted = 0
        """How often its connection was lost, or that of its server to another one: what others published until it was back has not come, but for what is kept or stored."""
        if since and group:
            raise ValueError("a group shares messages as they come; who shares stored ones uses a channel")
        self._limit = limit
        self._limit_bytes = limit_bytes
        self.patience = patience

    # Inside.

    def announce(self) -> int:
        number = self._core.session.subscribe(
            self._id,
            self.pattern,
            group=self.group,
            flags=self._flags | WAIT * (self._known and not self.live),
            policy=POLICIES.index(self.policy),
            rules=self._rules.wire,
            notify=self.notify,
            since=self._again(),
        )
        self._core.flow_control.renew(self._id)
        return number

    def _again(self) -> bytes:
        """From where it wants stored messages: what it was told to, or behind those that have arrived."""
        reached = dict(self._begun)
        for place, following in self._core.session.reached(self._id):
            reached[place] = max(reached.get(place, 0), following)
        return since_again(reached, self._since, self._opened) if reached else self._since

    def arrow(
        self, most: int = 4096, *, within: Duration = 0.1, columns: Sequence[str] = PLACED
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        """As batches(), but an async iterator over Arrow record batches with these columns; needs `busway[arrow]`.

        A batch has at most so many rows, and is given at the latest so long after its first message has arrived. The columns are those of
        Stream.arrow(); a message that is not stored has no `broker`, `stream`, `offset`, `sequence` and `stored`.
        """
        arrow_columns.arrow()
        check_count("most", most)
        return self._arrow(most, check_seconds("within", within), arrow_columns.check_columns(columns))

    async def _arrow(
        self, most: int, within: float, columns: tuple[str, ...]
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        while True:
            # What waits stays in the inbox, so that a consumer that is cancelled here loses nothing.
            if within and 0 < self.pending < most:
                await asyncio.sleep(within)
            if batch := self._batch(most):
                made = arrow_columns.message_batch(batch, columns)
                if made.num_rows:
                    yield made
            elif not self.pending and not await self._wait(None):
                return

    def gap(self, place: Position, count: int) -> None:
        """Messages from this place on are gone for good; none: it begins here."""
        key = place.broker, place.stream
        self._begun[key] = max(self._begun.get(key, 0), place.offset + count)
        if count:
            self.lost += count
            self._core.log_lines.missed(self.pattern, count, GONE)
            self._core.events.emit(Event(kind="gap", topic=self.pattern, count=count))

    @property
    def position(self) -> Positions:
        """How far its consumers have come; given as `since` to a later subscription it goes on from there."""
        self._note(self._last[: len(self._last) - length_hint(self._ready)])
        return Positions({**self._begun, **self._next})

    def _note(self, taken: list[Message]) -> None:
        for place, following in furthest(taken):
            self._next[place] = following

    def restored(self) -> None:
        self.interrupted += 1

    def apart(self) -> bool:
        """Its server was cut off from another one; whether it may have missed something of that."""
        if self._scope == "local" or not self.plain:
            return False
        self.interrupted += 1
        return True

    @property
    def plain(self) -> bool:
        """It does not ask for what it has missed."""
        return not self._since

    def _withdraw(self) -> int:
        return self._core.session.unsubscribe(self._id)

    def _enter(self) -> None:
        policy = POLICIES.index(self.policy)
        self._inbox = self._core.session.inbox(self._id, messages=self._limit, bytes=self._limit_bytes, policy=policy)
        self._take = self._accepted if self._rules.local else self._inbox.take
        self._core.subscriptions[self._id] = self

    def _leave(self) -> None:
        if self._core.subscriptions.pop(self._id, None) is not None:
            _forget(self._core, self._id)

    def _farewell(self) -> Callable[[], None]:
        return partial(_unsubscribe, self._core, self._id)

    def _accepted(self, most: int) -> list[Message]:
        """As the inbox's take(), but only what the predicates take."""
        while batch := self._inbox.take(most):
            if accepted := list(filter(self._accepts, batch)):
                return accepted
            self._core.report_room()
        return []

    def _accepts(self, message: Message) -> bool:
        kind = message.kind
        if kind == "notify":
            return True
        return (self._listen or kind not in _COPIES) and self._rules.accepts(message, self._report)

    def _report(self, error: Exception) -> None:
        self._core.report(error, "a rule", self.pattern)

    def _taken(self, batch: list[Message]) -> None:
        if self._since:
            self._note(self._last)
            self._last = batch

    def _batch(self, most: int) -> list[Message]:
        batch = super()._batch(most)
        if self._since:
            self._note(batch)
        return batch


def _forget(core: Core, number: int) -> None:
    core.session.forget(number)
    core.flow_control.forget(number)


def _unsubscribe(core: Core, number: int) -> None:
    """A subscription that was garbage-collected."""
    if core.greeted:
        core.session.unsubscribe(number)
    _forget(core, number)


def _check_local(rules: Compiled, group: str) -> None:
    """Callables that can't be asked."""
    name = rules.predicates[0][0] if rules.predicates else ""
    if group:
        what = f"the rule for {name!r}" if rules.predicates else "extra"
        reason = (
            f"{what} is a callable, and which member of a group gets a message is decided by the broker, which can't ask it: "
            "write it as busway.expr(...), or subscribe without a group"
        )
        raise InvalidRule(reason, name=name)
    for name, predicate in [*rules.predicates, ("extra", rules.extra)]:
        if iscoroutinefunction(predicate):
            raise InvalidRule(f"the rule for {name!r} is a coroutine function; a plain function is needed", name=name)
