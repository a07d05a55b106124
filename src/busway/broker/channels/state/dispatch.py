"""What follows when something happened to a channel: who is given what, what dies, and what is noted.

The inner half of the machine in `channels`, which tells it what happened.
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from busway.backoff import delay_of
from busway.broker.channels.dead_letters.failures import UNKNOWN, Deliveries, Failure
from busway.broker.channels.state.actions import Action, Bury, Deliver, Read, TakeDone, Write
from busway.broker.channels.state.backlog import Backlog
from busway.broker.channels.state.consumers import Consumer, Consumers, Take, Who
from busway.broker.channels.state.in_flight import BEHIND, DYING, FLIGHT, InFlight, Run
from busway.broker.channels.state.progress import ChannelState, Delivered, Done, Span

RANGES: Final = 65_536
"""So many runs a channel holds; with more it reads no further until some are done."""
STRIDE: Final = 65_536
"""A floor that moves on without acknowledgements (nothing matches) is noted after so many messages."""

_TRACEBACKS: Final = 2000
"""With more runs than this a channel keeps failures without their tracebacks."""


class Dispatch:
    """What a channel has, and how it is handed out."""

    def __init__(self, state: ChannelState, *, ranges: int = RANGES) -> None:
        config = state.config
        assert config is not None, "whoever opens a channel says how it is set"
        state = state.copy()  # it goes on from there
        self.name = state.channel
        self.config = config
        self._epoch = state.epoch
        self._noted = state.floor
        self._first = self._safe = 0
        self._ranges = ranges
        self._consumers = Consumers()
        self._held = InFlight()
        self._ahead = Backlog(state)
        self._brief: list[Take] = []
        self._alone = inf
        self.resting = False
        """Somebody else hands out."""
        self.moved = False
        """It was put to another place since it was opened."""
        self.redelivered = self.dead = self.late = self.refused = 0
        self.lost, self._told = state.lost, state.told

    @property
    def epoch(self) -> int:
        """It changes whenever the channel goes to another place."""
        return self._epoch

    @property
    def first(self) -> int:
        """The first offset that the stream still has, as far as it was told."""
        return self._first

    @property
    def cursor(self) -> int:
        """Nothing from here on was handed out."""
        return self._ahead.cursor

    @property
    def floor(self) -> int:
        """Everything below is done."""
        first = self._held.first
        return self.cursor if first is None else first

    @property
    def more(self) -> bool:
        """Whether there may be something to hand out."""
        ahead = self._ahead
        return not self._idle and bool(self._held.due or ahead.fresh or ahead.scanned < self._safe)

    @property
    def _idle(self) -> bool:
        return self.config.paused or self.resting

    def in_flight(self, who: Who) -> int:
        """How many a consumer has."""
        consumer = self._consumers.get(who)
        return 0 if consumer is None else consumer.in_flight

    def _pump(self, now: float, out: list[Action]) -> list[Action]:
        """Hand out what can be, those that come again first, and look for more if somebody has room."""
        consumers, held, ahead = self._consumers, self._held, self._ahead
        if not self._idle:
            while consumers.room:
                available = held.due + (ahead.fresh if len(held) < self._ranges else 0)
                if not available:
                    break
                consumer, most = consumers.next(available)
                self._give(consumer, most, now, out)
                consumers.rate(consumer)
            if consumers.room and len(held) < self._ranges and ahead.look(self._safe):
                out.append(Read(ahead.scanned, min(consumers.room, RANGES), ahead.looking))
        if self._brief and (self._idle or not self._ahead.looking):
            for take in self._brief:
                self._end_take(take, out)
            self._brief.clear()
        if self.floor - self._noted >= STRIDE:
            self._note_done((), out)
        return out

    def _give(self, consumer: Consumer, most: int, now: float, out: list[Action]) -> None:
        held, ahead, worst = self._held, self._ahead, self.config.max_deliveries
        ready = ahead.ready
        until = self._lease_end(consumer, now)
        left, times = most, 0
        spans: list[Span] = []
        while left and held.due:
            run = held.next_again(left)
            run.phase, run.holder, run.until = FLIGHT, consumer, until
            run.deliveries += 1
            run.first, run.last = run.first or now, now
            if until != inf:
                held.wake(run)
            if run.deliveries != times:
                self._deliver(consumer, spans, times, out)
                spans, times = [], run.deliveries
            spans.append((run.start, run.end - run.start))
            left -= run.end - run.start
        while left and ready and len(held) < self._ranges:
            start, end, before = ready.popleft()
            key = ahead.keys.pop(start, None) if ahead.keys else None
            if worst and before >= worst:
                ahead.fresh -= end - start
                self._die(held.add(start, end, DYING, None, before, inf, key), out)
                continue
            if key is not None and held.has_line(key):
                ahead.fresh -= 1
                held.add(start, end, BEHIND, None, before, inf, key)
                continue
            if end - start > left:
                ready.appendleft((start + left, end, before))
                end = start + left
            run = held.add(start, end, FLIGHT, consumer, before + 1, until, key)
            run.first = run.last = now
            if before + 1 != times:
                self._deliver(consumer, spans, times, out)
                spans, times = [], before + 1
            spans.append((start, end - start))
            ahead.fresh -= end - start
            left -= end - start
        self._deliver(consumer, spans, times, out)
        given = most - left
        consumer.in_flight += given
        while given and consumer.takes:
            take = consumer.takes[0]
            part = min(given, take.left)
            take.left -= part
            take.got += part
            consumer.wanted -= part
            given -= part
            if not take.left:
                self._end_take(take, out)
            elif not take.whole:
                self._brief.append(take)

    def _deliver(self, consumer: Consumer, spans: list[Span], times: int, out: list[Action]) -> None:
        if not spans:
            return
        if times > 1:
            self.redelivered += sum(count for _, count in spans)
        if self._counts(times):
            out.append(Write(Delivered(self.name, self._epoch, times, tuple(spans))))
        out.append(Deliver(consumer.who, spans, times))

    def _counts(self, deliveries: int) -> bool:
        """Whether a crash must not forget that there were so many."""
        return deliveries > 1 or 0 < self.config.max_deliveries <= deliveries

    def _back(self, run: Run, out: list[Action], failure: Failure | None, until: float = 0.0) -> None:
        """What was in flight comes back without an acknowledgement."""
        assert run.holder is not None
        self._landed(run.holder, run.end - run.start)
        if failure is not None:
            run.failure = failure if len(self._held) <= _TRACEBACKS else failure.short()
        if 0 < self.config.max_deliveries <= run.deliveries and not self.resting:
            self._die(run, out)
        elif until:
            self._held.later(run, until)
        else:
            self._held.again(run)

    def _pause(self, run: Run, failures: int, now: float) -> float:
        """When a message that failed so many times is redelivered, as the backoff says; 0: at once."""
        wait = delay_of(self.config.backoff, failures, f"{self.name} {run.start}") if failures > 0 else 0.0
        return now + wait if wait else 0.0

    def deliveries(self, offset: int) -> Deliveries:
        """How the deliveries of a message went that is on its way to the dead-letter topic."""
        for run in self._held.pick(offset, offset + 1, DYING, None)[0]:
            return Deliveries(run.failure or UNKNOWN, run.first, run.last)
        return Deliveries(UNKNOWN, 0.0, 0.0)

    def _landed(self, holder: Consumer, count: int) -> None:
        holder.in_flight -= count
        self._consumers.rate(holder)

    def _die(self, run: Run, out: list[Action]) -> None:
        self._held.dying(run)
        out.append(Bury((run.start, run.end - run.start), run.deliveries))

    def _end_take(self, take: Take, out: list[Action]) -> None:
        if take.over:
            return
        take.over = True
        consumer = take.consumer
        consumer.takes.remove(take)
        consumer.wanted -= take.left
        self._consumers.rate(consumer)
        out.append(TakeDone(consumer.who, take.number, take.got))

    def _note_done(self, pieces: Iterable[tuple[int, int]], out: list[Action]) -> None:
        """Note the floor and, above it, all that is done around these: also what lies between and was not chosen."""
        held, floor, cursor = self._held, self.floor, self.cursor
        spans: list[Span] = []
        upto = floor
        for start, end in sorted(pieces):
            if end > upto:
                low, upto = held.around(start, floor, cursor)
                spans.append((low, upto - low))
        self._noted = floor
        out.append(Write(Done(self.name, self._epoch, floor, tuple(spans))))

    def _lease_end(self, consumer: Consumer | None, now: float) -> float:
        """When the lease of a message ends that this consumer is given, or extends, now.

        A consumer that renews its leases learns of a shorter one with its next renewal, and has the longer one until then.
        """
        lease = self.config.lease or inf
        return now + (lease if consumer is None else max(lease, consumer.lease))
