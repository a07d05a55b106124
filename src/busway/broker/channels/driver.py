"""The driver of one channel: carries out the actions of its machine.

It reads the stream, delivers records, moves messages to the dead-letter topic and writes the journal. Actions wait in
one queue and are done in order; only a block that has to be fetched first delays the queue. `manager` opens and ends
drivers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from busway._core import Block, Selection
from busway.broker.channels.frames import dead_topic
from busway.broker.channels.order_keys import keys_of
from busway.broker.channels.progress_log import ignore_failure
from busway.broker.channels.state.actions import (
    AckResult,
    Action,
    Delete,
    Deliver,
    MoveToDeadLetters,
    Read,
    ReportLost,
    Rewound,
    TakeDone,
    Write,
)
from busway.broker.channels.state.channel import Channel
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import USUAL_SETTINGS, ChannelState, Entry, Span, States
from busway.broker.streams.stream import Stream
from busway.common import environment
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

_BLOCKS: Final = 4
"""The number of blocks that a channel caches for small deliveries and redeliveries."""
_NO_TOPIC: Final = "*"
"""A topic that no message has. The empty topic is valid."""
_LEAST: Final = 16 << 10
_MOST: Final = 256 << 10
"""The least and the most bytes of one read."""
_EACH: Final = 4096
"""Bytes to read for each wanted message, within the bounds above. Messages not delivered now are delivered soon."""
_TURN: Final = 8
"""Blocks that a channel searches before it yields to the event loop."""
_RETRY: Final = 1.0
"""Seconds until a failed read is retried."""
_USUAL: Final = USUAL_SETTINGS | {"where": ""}
"""The settings that a ChannelInfo has even if they are the defaults."""


class ProgressStore(Protocol):
    """Stores the progress of a stream's channels: a `progress_log.ProgressLog`, or tables of a database."""

    async def start(self) -> States: ...
    def write(self, entries: Iterable[Entry]) -> "asyncio.Future[None]": ...
    async def stop(self) -> None: ...
    def figures(self) -> dict[str, Any]: ...


class ChannelDriver:
    """Connects the machine of a channel with its stream, its journal and its consumers."""

    def __init__(
        self,
        runtime: "Runtime",
        consumers: "ChannelConsumers",
        stream: Stream,
        journal: ProgressStore,
        state: ChannelState,
        *,
        move: Callable[["ChannelDriver", Block, MoveToDeadLetters], None],
        deleted: Callable[["ChannelDriver"], None],
        alarm: Callable[["ChannelDriver"], None],
    ) -> None:
        self._runtime = runtime
        self._all_consumers = consumers
        self.stream = stream
        self.name = state.channel
        self.journal = journal
        self.machine = Channel(state)
        self.consumers: set[Who] = set()
        self.drained: set[Who] = set()
        """Consumers of other nodes that have taken all messages and wait for a report of more."""
        self._move = move
        self._deleted = deleted
        self._alarm = alarm
        self._todo: deque[Action] = deque()
        self._blocks: list[tuple[int, int, Block]] = []
        self._short: dict[Who, int] = {}
        """By consumer: messages of its take that were not delivered because they had expired."""
        self._running = False
        self._held_up = False
        self._turns = 0
        self.alarm_at: float | None = None
        self.over = False
        self.configured()

    def configured(self) -> None:
        """Apply changed settings."""
        config = self.machine.config
        self._selection = Selection(config.topic, config.where)
        self.dead_topic = dead_topic(config, self.stream.config.name, self.name)

    @property
    def now(self) -> float:
        return self._runtime.loop.time()

    def do(self, actions: Iterable[Action]) -> "asyncio.Future[None] | None":
        """Carry out actions. If they have journal entries, the returned future is done when those are safe."""
        entries: list[Entry] = []
        for action in actions:
            if isinstance(action, Write):
                entries.append(action.entry)
            elif not isinstance(action, AckResult):
                self._todo.append(action)
        written = None
        if entries:
            written = self.journal.write(entries)
            if written.done():
                ignore_failure(written)
            else:
                written.add_done_callback(ignore_failure)
        if not self._running:
            self._run()
        self._alarm(self)
        if self.drained and self.machine.more:
            self._report_more()
        return written

    def _report_more(self) -> None:
        """Report to drained consumers that there are messages; once, until they take again."""
        drained, self.drained = self.drained, set()
        for consumer in drained & self.consumers:
            self._all_consumers.sink(consumer).more(consumer)

    def catch_up(self) -> None:
        """Pass the bounds of the stream to the machine. A stream in memory drops old messages without notice."""
        machine = self.machine
        if (first := self.stream.first) > machine.first:
            self.do(machine.trimmed(first, self.now))
        self.do(machine.appended(self.stream.safe, self.now))

    def suspend(self) -> None:
        """Stop delivering, because another broker may do so from now on. Queued deliveries are revoked."""
        for action in self._todo:
            if isinstance(action, Deliver):
                self.machine.revoke(action.consumer, action.spans)
        self._todo = deque(action for action in self._todo if not isinstance(action, Deliver))
        self.machine.suspend()

    def unsuspend(self) -> None:
        """Deliver again."""
        self.catch_up()
        self.do(self.machine.unsuspend(self.now))

    def left(self, consumer: Who) -> None:
        """Forget a consumer that has left. Another consumer may get its number."""
        self.consumers.discard(consumer)
        self.drained.discard(consumer)
        self._short.pop(consumer, None)

    def figures(self) -> dict[str, Any]:
        """The settings, position and messages in flight of the channel, with the keys of a ChannelInfo."""
        self.catch_up()
        settings: dict[str, Any] = msgspec.to_builtins(self.machine.config)
        names = {"name": self.name, "stream": self.stream.config.name}
        return _USUAL | settings | self.machine.figures() | names

    def end(self) -> None:
        """Deliver nothing any more."""
        self.over = True
        self._todo.clear()
        self._blocks.clear()

    # The actions of the machine.

    def _run(self) -> None:
        self._running = True
        try:
            while self._todo and not self._held_up and not self.over:
                try:
                    done = self._perform(self._todo[0])
                except BusError as error:
                    name = self.stream.config.name
                    log.warning(
                        "channel %r of stream %r can't read the stream, and retries in %g s: %s",
                        *(self.name, name, _RETRY, error),
                    )
                    self._wait(self._runtime.loop.call_later, _RETRY)
                    return
                if not done:
                    return
        finally:
            self._running = False

    def _wait(self, schedule: Callable[..., object], *when: float) -> None:
        self._held_up = True
        schedule(*when, self.again)

    def again(self) -> None:
        """Continue with the queue: the block has been fetched, or the delay is over."""
        self._held_up = False
        self._turns = 0
        if not self._running:
            self._run()
            self._alarm(self)
            self._runtime.flush()

    def _perform(self, action: Action) -> bool:
        """Carry out one action. False: it is not done yet, and stays first in the queue."""
        if isinstance(action, Read):
            return self._read(action)
        if isinstance(action, Deliver):
            return self._deliver(action)
        if isinstance(action, MoveToDeadLetters):
            return self._move_to_dead_letters(action)
        self._todo.popleft()
        if isinstance(action, TakeDone):
            if action.consumer in self.consumers:
                got = action.got - min(self._short.pop(action.consumer, 0), action.got)
                self._all_consumers.taken(action.consumer, action.number, got)
        elif isinstance(action, ReportLost):
            self._report_lost(action)
        elif isinstance(action, Rewound):
            name = self.stream.config.name
            log.warning(
                "stream %r lost its end: channel %r moves from offset %d back to %d",
                *(name, self.name, action.was, action.offset),
            )
        elif isinstance(action, Delete):
            self._deleted(self)
        return True

    def _read(self, read: Read) -> bool:
        """Search one block for messages that the channel selects."""
        self._turns += 1
        if self._turns > _TURN:
            self._wait(self._runtime.loop.call_soon)
            return False
        begin = self.stream.skip(read.from_, self._selection)
        size = min(max(read.want * _EACH, _LEAST), _MOST)
        found = self._fetch(begin, size)
        if found is None:
            return False
        _, following, block = found
        self._todo.popleft()
        spans = block.find(begin, self._selection, self.dead_topic or _NO_TOPIC, environment.time_ns())
        if spans:
            self._turns = 0
        order_by = self.machine.config.order_by
        keys = keys_of(block, spans, order_by) if order_by else None
        self._add(self.machine.found(read.ticket, spans, following, self.now, keys))
        return True

    def _deliver(self, action: Deliver) -> bool:
        """Deliver records, block by block."""
        consumer, spans, deliveries = action
        sink = self._all_consumers.sink(consumer)
        lost: list[Span] = []
        rest = deque(spans)
        while rest and consumer in self.consumers:
            found = self._fetch(rest[0][0], _MOST)
            if found is None:
                self._todo[0] = Deliver(consumer, list(rest), deliveries)
                self._skip(consumer, lost)
                return False
            first, following, block = found
            parts: list[Span] = []
            while rest and rest[0][0] < max(following, first):
                start, count = rest.popleft()
                end = min(start + count, max(following, first))
                if end < start + count:
                    rest.appendleft((end, start + count - end))
                parts.append((start, end - start))
            if not parts:  # the stream has none of the remaining messages any more
                lost += rest
                break
            lost += sink.deliver(consumer, self.stream.number, block, parts, deliveries)
        self._todo.popleft()
        self._skip(consumer, lost)
        if not sink.has_room(consumer):
            self.machine.stop(consumer)
            sink.want_room(consumer)
        return True

    def _skip(self, consumer: Who, spans: list[Span]) -> None:
        if spans:
            self._short[consumer] = self._short.get(consumer, 0) + sum(count for _, count in spans)
            self._add(self.machine.skip(spans, self.now))

    def _move_to_dead_letters(self, action: MoveToDeadLetters) -> bool:
        (start, count), deliveries = action
        found = self._fetch(start, _MOST)
        if found is None:
            return False
        self._todo.popleft()
        first, following, block = found
        if first > start or following <= start:  # retention has dropped it
            self._add(self.machine.skip([(start, min(count, max(first - start, 1)))], self.now))
            return True
        part = min(count, following - start)
        if part < count:
            self._todo.appendleft(MoveToDeadLetters((start + part, count - part), deliveries))
        self._move(self, block, MoveToDeadLetters((start, part), deliveries))
        return True

    def _add(self, actions: Iterable[Action]) -> None:
        """Queue more actions. The caller is working on the queue already."""
        running, self._running = self._running, True
        try:
            self.do(actions)
        finally:
            self._running = running

    def _report_lost(self, action: ReportLost) -> None:
        count = sum(many for _, many in action.spans)
        name = self.stream.config.name
        if not action.before:
            log.warning("stream %r dropped %d messages that channel %r had not finished", name, count, self.name)
        for consumer in self.consumers if action.consumer is None else self.consumers & {action.consumer}:
            sink = self._all_consumers.sink(consumer)
            for start, many in action.spans:
                sink.gap(consumer, self.stream.number, start, start + many)

    # Blocks.

    def _fetch(self, offset: int, size: int) -> tuple[int, int, Block] | None:
        """The block with this offset. None: it is being fetched, and the queue continues when it has arrived."""
        for at, (first, following, block) in enumerate(self._blocks):
            if first <= offset < following:
                if at:
                    self._blocks.insert(0, self._blocks.pop(at))
                return first, following, block
        read = self.stream.read(offset, size, self.again)
        if read is None:
            self._held_up = True
            return None
        first, following, data = read
        block = Block(data)
        if data:
            self._blocks.insert(0, (first, following, block))
            del self._blocks[_BLOCKS:]
        return first, following, block
