"""One channel at work: does what its machine wants done. Reads the stream, hands records out, buries the dead, keeps notes.

What it has to do waits in one queue and is done in order. A block that has to be fetched first holds the queue up, nothing else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from busway._core import Block, Selection
from busway.broker.channels.frames import dead_topic
from busway.broker.channels.journal import heard
from busway.broker.channels.order_keys import keys_of
from busway.broker.channels.state.actions import (
    AckResult,
    Action,
    Bury,
    Delete,
    Deliver,
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
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

_BLOCKS: Final = 4
"""Blocks that a channel keeps, for what is handed out a few at a time or comes again."""
_NO_TOPIC: Final = "*"
"""What no message has as its topic. The empty topic is one."""
_LEAST: Final = 16 << 10
_MOST: Final = 256 << 10
_EACH: Final = 4096
"""Bytes that are read for each message that is wanted, within these bounds: what is not handed out now is soon."""
_TURN: Final = 8
"""Blocks that are looked through before everybody else has a turn."""
_RETRY: Final = 1.0
_USUAL: Final = USUAL_SETTINGS | {"where": ""}


class ProgressLog(Protocol):
    """Where a stream's channels are noted: a `journal.Journal`, or a table."""

    async def start(self) -> States: ...
    def write(self, entries: Iterable[Entry]) -> "asyncio.Future[None]": ...
    async def stop(self) -> None: ...
    def figures(self) -> dict[str, Any]: ...


class ChannelDriver:
    """A channel, its stream and its notes."""

    def __init__(
        self,
        hub: "Hub",
        stream: Stream,
        notes: ProgressLog,
        state: ChannelState,
        *,
        bury: Callable[["ChannelDriver", Block, Bury], None],
        deleted: Callable[["ChannelDriver"], None],
        alarm: Callable[["ChannelDriver"], None],
    ) -> None:
        self._hub = hub
        self.stream = stream
        self.name = state.channel
        self.notes = notes
        self.machine = Channel(state)
        self.consumers: set[Who] = set()
        self.far: set[Who] = set()
        """Those of another node that have taken all there was, and want to hear when there is more."""
        self._bury = bury
        self._deleted = deleted
        self._alarm = alarm
        self._todo: deque[Action] = deque()
        self._blocks: list[tuple[int, int, Block]] = []
        self._short: dict[Who, int] = {}
        """What was not handed out of what a take was to get, since it had expired."""
        self._running = False
        self._held_up = False
        self._turns = 0
        self.alarm_at: float | None = None
        self.over = False
        self.configured()

    def configured(self) -> None:
        """The settings have changed."""
        config = self.machine.config
        self._selection = Selection(config.topic, config.where)
        self.dead_topic = dead_topic(config, self.stream.config.name, self.name)

    @property
    def now(self) -> float:
        return self._hub.loop.time()

    def do(self, actions: Iterable[Action]) -> "asyncio.Future[None] | None":
        """Do these; tells when what has to be noted of them is safe, if anything has."""
        noted: list[Entry] = []
        for action in actions:
            if isinstance(action, Write):
                noted.append(action.entry)
            elif not isinstance(action, AckResult):
                self._todo.append(action)
        told = None
        if noted:
            told = self.notes.write(noted)
            if told.done():
                heard(told)
            else:
                told.add_done_callback(heard)
        if not self._running:
            self._run()
        self._alarm(self)
        if self.far and self.machine.more:
            self._tell_more()
        return told

    def _tell_more(self) -> None:
        """Those who take for the clients of another node hear when it is worth to ask; once, until they have asked."""
        far, self.far = self.far, set()
        for who in far & self.consumers:
            self._hub.channels.outlet(who).more(who)

    def catch_up(self) -> None:
        """The stream may have more, and less: one in memory keeps its bounds by itself."""
        machine = self.machine
        if (first := self.stream.first) > machine.first:
            self.do(machine.trimmed(first, self.now))
        self.do(machine.appended(self.stream.safe, self.now))

    def suspend(self) -> None:
        """Somebody else may hand out from now on: nothing goes out here, also not what was about to."""
        for action in self._todo:
            if isinstance(action, Deliver):
                self.machine.revoke(action.consumer, action.spans)
        self._todo = deque(action for action in self._todo if not isinstance(action, Deliver))
        self.machine.suspend()

    def unsuspend(self) -> None:
        """Hand out again."""
        self.catch_up()
        self.do(self.machine.unsuspend(self.now))

    def left(self, who: Who) -> None:
        """A consumer is gone, and somebody else may come to have its number."""
        self.consumers.discard(who)
        self.far.discard(who)
        self._short.pop(who, None)

    def figures(self) -> dict[str, Any]:
        """Settings, where it stands and what is on its way, as a ChannelInfo has them."""
        self.catch_up()
        settings: dict[str, Any] = msgspec.to_builtins(self.machine.config)
        names = {"name": self.name, "stream": self.stream.config.name}
        return _USUAL | settings | self.machine.figures() | names

    def end(self) -> None:
        """Nothing is handed out any more."""
        self.over = True
        self._todo.clear()
        self._blocks.clear()

    # What the machine wants done.

    def _run(self) -> None:
        self._running = True
        try:
            while self._todo and not self._held_up and not self.over:
                try:
                    done = self._perform(self._todo[0])
                except BusError as error:
                    name = self.stream.config.name
                    log.warning("channel %r of stream %r can't read it: %s", self.name, name, error)
                    self._wait(self._hub.loop.call_later, _RETRY)
                    return
                if not done:
                    return
        finally:
            self._running = False

    def _wait(self, how: Callable[..., object], *when: float) -> None:
        self._held_up = True
        how(*when, self.again)

    def again(self) -> None:
        """What it waited for is here."""
        self._held_up = False
        self._turns = 0
        if not self._running:
            self._run()
            self._alarm(self)
            self._hub.flush()

    def _perform(self, action: Action) -> bool:
        """Whether it is done; else it stays first in the queue."""
        if isinstance(action, Read):
            return self._look(action)
        if isinstance(action, Deliver):
            return self._hand(action)
        if isinstance(action, Bury):
            return self._let_die(action)
        self._todo.popleft()
        if isinstance(action, TakeDone):
            if action.consumer in self.consumers:
                got = action.got - min(self._short.pop(action.consumer, 0), action.got)
                self._hub.channels.taken(action.consumer, action.number, got)
        elif isinstance(action, ReportLost):
            self._tell_gone(action)
        elif isinstance(action, Rewound):
            name = self.stream.config.name
            log.warning(
                "stream %r lost its end: channel %r goes from %d to %d", name, self.name, action.was, action.offset
            )
        elif isinstance(action, Delete):
            self._deleted(self)
        return True

    def _look(self, read: Read) -> bool:
        """Look for what the channel chooses."""
        self._turns += 1
        if self._turns > _TURN:
            self._wait(self._hub.loop.call_soon)
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

    def _hand(self, action: Deliver) -> bool:
        """Hand records out, block by block."""
        who, spans, deliveries = action
        outlet = self._hub.channels.outlet(who)
        lost: list[Span] = []
        rest = deque(spans)
        while rest and who in self.consumers:
            found = self._fetch(rest[0][0], _MOST)
            if found is None:
                self._todo[0] = Deliver(who, list(rest), deliveries)
                self._lose(who, lost)
                return False
            first, following, block = found
            parts: list[Span] = []
            while rest and rest[0][0] < max(following, first):
                start, count = rest.popleft()
                end = min(start + count, max(following, first))
                if end < start + count:
                    rest.appendleft((end, start + count - end))
                parts.append((start, end - start))
            if not parts:  # nothing is there, and never will be
                lost += rest
                break
            lost += outlet.hand(who, self.stream.number, block, parts, deliveries)
        self._todo.popleft()
        self._lose(who, lost)
        if not outlet.has_room(who):
            self.machine.stop(who)
            outlet.want_room(who)
        return True

    def _lose(self, who: Who, spans: list[Span]) -> None:
        if spans:
            self._short[who] = self._short.get(who, 0) + sum(count for _, count in spans)
            self._add(self.machine.skip(spans, self.now))

    def _let_die(self, action: Bury) -> bool:
        (start, count), deliveries = action
        found = self._fetch(start, _MOST)
        if found is None:
            return False
        self._todo.popleft()
        first, following, block = found
        if first > start or following <= start:  # gone meanwhile
            self._add(self.machine.skip([(start, min(count, max(first - start, 1)))], self.now))
            return True
        part = min(count, following - start)
        if part < count:
            self._todo.appendleft(Bury((start + part, count - part), deliveries))
        self._bury(self, block, Bury((start, part), deliveries))
        return True

    def _add(self, actions: Iterable[Action]) -> None:
        """More to do; whoever calls is doing it already."""
        running, self._running = self._running, True
        try:
            self.do(actions)
        finally:
            self._running = running

    def _tell_gone(self, action: ReportLost) -> None:
        count = sum(many for _, many in action.spans)
        name = self.stream.config.name
        if not action.before:
            log.warning("stream %r dropped %d messages that channel %r had not done", name, count, self.name)
        told = self.consumers if action.consumer is None else self.consumers & {action.consumer}
        for who in told:
            outlet = self._hub.channels.outlet(who)
            for start, many in action.spans:
                outlet.gap(who, self.stream.number, start, start + many)

    # Blocks.

    def _fetch(self, offset: int, size: int) -> tuple[int, int, Block] | None:
        """The block with this offset; None: the queue goes on when it is here."""
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
