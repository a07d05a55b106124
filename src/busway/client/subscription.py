"""A subscription: messages as they arrive, one by one, in batches, or through a handler.

Messages wait in the native inbox and are taken out in batches. The batch in progress belongs to the subscription, not
to whoever iterates: breaking out of a loop or cancelling a recv() loses nothing, and several consumers share the
messages, each going to one of them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from operator import length_hint
from typing import Final, Self, TypeAlias

from busway._core import Inbox, Message
from busway.checks import check_count, check_seconds, check_type
from busway.client.core import Core
from busway.client.events import Event
from busway.client.part import Part
from busway.client.tasks import finish
from busway.errors import BusError, Closed, InvalidRule
from busway.fields import Compiled
from busway.positions import Position, Positions
from busway.settings import POLICIES, MiB, Policy
from busway.since import since_positions

Handler: TypeAlias = Callable[[Message], object] | Callable[[Message], Awaitable[object]]

_BATCH: Final = 1024
_NO_ECHO: Final = 0x01
_WATCH: Final = 0x02
_LISTEN: Final = 0x04
_SINCE: Final = 0x08
_COPIES: Final = {"push", "request"}


class Subscription(Part):
    """Made by `bus.subscribe(...)`. Iterate over it, or use recv(), take() or batches()."""

    noun = "subscription"
    _inbox: Inbox
    _take: Callable[[int], list[Message]]

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
        patience: float = 5.0,
        since: bytes = b"",
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")
        check_count("limit", limit)
        check_count("limit_bytes", limit_bytes)
        check_count("concurrency", concurrency)
        check_seconds("patience", patience)
        check_type("group", group, str, "a str")
        if rules.local:
            _check_local(rules, group)
        super().__init__(core, pattern, drain)
        self.pattern = pattern
        self.group = group
        self.policy = policy
        self._rules = rules
        self.notify = bool(notify)
        self._listen = bool(listen)
        # Who asks a predicate can't refuse a push, which was taken by then: so it is no consumer, as one who listens.
        consumer = not (listen or rules.local)
        self._flags = _NO_ECHO * (not echo) | _WATCH * bool(watch) | _LISTEN * (not consumer) | _SINCE * bool(since)
        self._since = since
        self._begun: dict[tuple[str, str], int] = {}
        self._next: dict[tuple[str, str], int] = {}
        self._last: list[Message] = []
        self.lost = 0
        """Stored messages that it should have got and that are gone for good; `bus.events()` tells of each gap."""
        if since and group:
            raise ValueError("a group shares messages as they come; who shares stored ones uses a channel")
        self._limit = limit
        self._limit_bytes = limit_bytes
        self.handled = handler is not None
        self._handler = handler
        self._concurrency = concurrency
        self.patience = patience
        self._ready: Iterator[Message] = iter(())
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Self:
        """Register with the broker; after this every matching message is delivered."""
        await super().start()
        if self._handler is not None:
            for _ in range(self._concurrency):
                name = f"busway handler of {self.pattern!r}"
                self._tasks.add(self._core.loop.create_task(self._work(self._handler), name=name))
        return self

    # Receiving.

    async def recv(self, timeout: float | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or what ended the subscription."""
        while True:
            for message in self._ready:
                return message
            if not self._refill():
                await self._more(timeout)

    async def take(self, most: int = 4096, timeout: float | None = None) -> list[Message]:
        """At least one message and at most so many; raises as recv() does."""
        check_count("most", most)
        while not (batch := self._batch(most)):
            await self._more(timeout)
        return batch

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._each()

    async def _each(self) -> AsyncGenerator[Message, None]:
        while True:
            for message in self._ready:
                yield message
            if not self._refill() and not await self._wait(None):
                return

    async def batches(self, most: int = 4096) -> AsyncGenerator[list[Message], None]:
        """Lists of at most so many messages: the fast way to take many."""
        check_count("most", most)
        while True:
            if batch := self._batch(most):
                yield batch
            elif not await self._wait(None):
                return

    @property
    def pending(self) -> int:
        """Messages that have arrived and were not taken yet."""
        return len(self._inbox) + length_hint(self._ready) if self._started else 0

    @property
    def received(self) -> int:
        """Messages that have arrived in all."""
        return self._inbox.received if self._started else 0

    @property
    def missed(self) -> int:
        """Messages that were dropped in all, by the broker or here."""
        return self._inbox.missed if self._started else 0

    # Inside.

    @property
    def taken(self) -> int:
        """Messages that consumers have taken in all."""
        return self.received - self.pending

    @property
    def full(self) -> bool:
        """Over its limit, and not much room again since."""
        return self._inbox.full

    def announce(self) -> int:
        number = self._core.session.subscribe(
            self._id,
            self.pattern,
            group=self.group,
            flags=self._flags,
            policy=POLICIES.index(self.policy),
            rules=self._rules.wire,
            notify=self.notify,
            since=self._again(),
        )
        self._core.holding.renew(self._id)
        return number

    def _again(self) -> bytes:
        """From where it wants stored messages: what it was told to, or behind those that have arrived."""
        reached = dict(self._begun)
        for place, following in self._core.session.reached(self._id):
            reached[place] = max(reached.get(place, 0), following)
        return since_positions(reached) if reached else self._since

    def gap(self, place: Position, count: int) -> None:
        """Messages from this place on are gone for good; none: it begins here."""
        key = place.broker, place.stream
        self._begun[key] = max(self._begun.get(key, 0), place.offset + count)
        if count:
            self.lost += count
            self._core.events.tell(Event(kind="gap", topic=self.pattern, count=count))

    @property
    def position(self) -> Positions:
        """How far its consumers have come; given as `since` to a later subscription it goes on from there."""
        self._note(self._last[: len(self._last) - length_hint(self._ready)])
        return Positions({**self._begun, **self._next})

    def _note(self, taken: list[Message]) -> None:
        for message in taken:
            if (offset := message.offset) is not None:
                place = message.broker or "", message.stream or ""
                # One that was due later is behind where it was read.
                self._next[place] = max(self._next.get(place, 0), offset + 1)

    def arrived(self) -> None:
        """The inbox was empty and has messages now."""
        self._wake()

    def _withdraw(self) -> int:
        return self._core.session.unsubscribe(self._id)

    def _enter(self) -> None:
        policy = POLICIES.index(self.policy)
        self._inbox = self._core.session.inbox(self._id, messages=self._limit, bytes=self._limit_bytes, policy=policy)
        self._take = self._accepted if self._rules.local else self._inbox.take
        self._core.subscriptions[self._id] = self

    def _leave(self) -> None:
        if self._core.subscriptions.pop(self._id, None) is not None:
            self._core.session.forget(self._id)
            self._core.holding.forget(self._id)

    async def _finish(self) -> None:
        await finish(self._others(self._tasks), self._drain, f"the handler of {self.pattern!r}")

    def _accepted(self, most: int) -> list[Message]:
        """As the inbox's take(), but only what the predicates take."""
        while batch := self._inbox.take(most):
            if accepted := list(filter(self._accepts, batch)):
                return accepted
            self._core.taken()
        return []

    def _accepts(self, message: Message) -> bool:
        kind = message.kind
        if kind == "notify":
            return True
        return (self._listen or kind not in _COPIES) and self._rules.accepts(message, self._report)

    def _report(self, error: Exception) -> None:
        self._core.report(error, "a rule", self.pattern)

    def _refill(self) -> bool:
        if not self._started or not (batch := self._take(_BATCH)):
            return False
        if self._since:
            self._note(self._last)
            self._last = batch
        self._ready = iter(batch)
        self._core.taken()
        return True

    def _batch(self, most: int) -> list[Message]:
        batch = list(islice(self._ready, most))
        if self._started and len(batch) < most and (more := self._take(most - len(batch))):
            batch = batch + more if batch else more
            self._core.taken()
        if self._since:
            self._note(batch)
        return batch

    async def _more(self, timeout: float | None) -> None:
        if not await self._wait(timeout):
            raise Closed(f"the subscription of {self.pattern!r} is closed")

    async def _work(self, handler: Handler) -> None:
        """What each of the handler's tasks does until the subscription is over."""
        try:
            while True:
                for message in self._ready:
                    try:
                        result = handler(message)
                        if isawaitable(result):
                            await result
                    except asyncio.CancelledError as error:
                        if (task := asyncio.current_task()) is not None and task.cancelling():
                            raise
                        self._core.report(error, "the handler", self.pattern)
                    except Exception as error:  # noqa: BLE001, reported
                        self._core.report(error, "the handler", self.pattern)
                if self._refill():
                    await asyncio.sleep(0)  # a handler that never waits must not starve the loop
                elif not await self._wait(None):
                    return
        except BusError as error:  # what ended the subscription; there is nobody else to raise it to
            self._core.report(error, "the subscription", self.pattern)


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
