"""Dispatch: after each event, delivers messages, moves exhausted ones to the dead-letter topic, and records progress.

The caller is `channel`, which changes consumers, messages in flight or the backlog, and then calls pump().
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from busway.backoff import delay_of
from busway.broker.channels.dead_letters.failures import UNKNOWN, Deliveries, Failure
from busway.broker.channels.state.actions import Action, Deliver, MoveToDeadLetters, Read, TakeDone, Write
from busway.broker.channels.state.backlog import Backlog
from busway.broker.channels.state.consumers import Consumer, Consumers, Take
from busway.broker.channels.state.in_flight import BEHIND, FLIGHT, MOVING, InFlight, Run
from busway.broker.channels.state.progress import Delivered, Done, Span
from busway.broker.channels.state.status import Status

RANGES: Final = 65_536
"""The most runs that a channel holds; with more it reads no further until some are done."""
STRIDE: Final = 65_536
"""A floor that advances without acknowledgements, since nothing matches, is recorded after this many messages."""

_TRACEBACKS: Final = 2000
"""With more runs than this a channel stores failures without their tracebacks."""


class Dispatch:
    """Delivers the messages of one channel to its consumers."""

    def __init__(
        self, status: Status, consumers: Consumers, in_flight: InFlight, backlog: Backlog, *, ranges: int = RANGES
    ) -> None:
        self._status = status
        self._consumers = consumers
        self._in_flight = in_flight
        self._backlog = backlog
        self._ranges = ranges
        self._brief: list[Take] = []
        """Takes that end as soon as no more messages are available."""

    @property
    def floor(self) -> int:
        """All messages below this offset are done."""
        first = self._in_flight.first
        return self._backlog.cursor if first is None else first

    @property
    def more(self) -> bool:
        """Whether there may be something to deliver."""
        backlog = self._backlog
        waiting = self._in_flight.due or backlog.fresh or backlog.scanned < self._status.safe
        return not self._status.idle and bool(waiting)

    @property
    def full(self) -> bool:
        """Whether the number of runs has reached its limit."""
        return len(self._in_flight) >= self._ranges

    def pump(self, now: float, out: list[Action]) -> list[Action]:
        """Deliver all messages that consumers have room for, redeliveries first, and read more if room is left."""
        consumers, held, backlog = self._consumers, self._in_flight, self._backlog
        if not self._status.idle:
            while consumers.room:
                available = held.due + (0 if self.full else backlog.fresh)
                if not available:
                    break
                consumer, most = consumers.next(available)
                self._deliver_to(consumer, most, now, out)
                consumers.rate(consumer)
            if consumers.room and not self.full and backlog.look(self._status.safe):
                out.append(Read(backlog.scanned, min(consumers.room, RANGES), backlog.looking))
        if self._brief and (self._status.idle or not backlog.looking):
            for take in self._brief:
                self.end_take(take, out)
            self._brief.clear()
        if self.floor - self._status.recorded >= STRIDE:
            self.record_done((), out)
        return out

    def _deliver_to(self, consumer: Consumer, most: int, now: float, out: list[Action]) -> None:
        until = self.lease_end(consumer, now)
        left = self._redeliver(consumer, most, until, now, out)
        left = self._deliver_fresh(consumer, left, until, now, out)
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
                self.end_take(take, out)
            elif not take.whole:
                self._brief.append(take)

    def _redeliver(self, consumer: Consumer, left: int, until: float, now: float, out: list[Action]) -> int:
        """Redeliver due messages. Returns how many more the consumer can get."""
        held, times = self._in_flight, 0
        spans: list[Span] = []
        while left and held.due:
            run = held.next_due(left)
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
        self._deliver(consumer, spans, times, out)
        return left

    def _deliver_fresh(self, consumer: Consumer, left: int, until: float, now: float, out: list[Action]) -> int:
        """Deliver messages of the backlog. Returns how many more the consumer can get."""
        held, backlog, worst = self._in_flight, self._backlog, self._status.config.max_deliveries
        ready, times = backlog.ready, 0
        spans: list[Span] = []
        while left and ready and not self.full:
            start, end, before = ready.popleft()
            key = backlog.keys.pop(start, None) if backlog.keys else None
            if worst and before >= worst:
                backlog.fresh -= end - start
                self.move_to_dead_letters(held.add(start, end, MOVING, None, before, inf, key), out)
                continue
            if key is not None and held.has_line(key):
                backlog.fresh -= 1
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
            backlog.fresh -= end - start
            left -= end - start
        self._deliver(consumer, spans, times, out)
        return left

    def _deliver(self, consumer: Consumer, spans: list[Span], times: int, out: list[Action]) -> None:
        if not spans:
            return
        status = self._status
        if times > 1:
            status.redelivered += sum(count for _, count in spans)
        if status.counts(times):
            out.append(Write(Delivered(status.name, status.epoch, times, tuple(spans))))
        out.append(Deliver(consumer.who, spans, times))

    def end_delivery(self, run: Run, out: list[Action], failure: Failure | None, until: float = 0.0) -> None:
        """A message was not acknowledged: redeliver it at the time `until`, or move it to the dead-letter topic."""
        assert run.holder is not None
        self.end_flight(run.holder, run.end - run.start)
        if failure is not None:
            run.failure = failure if len(self._in_flight) <= _TRACEBACKS else failure.short()
        if 0 < self._status.config.max_deliveries <= run.deliveries and not self._status.suspended:
            self.move_to_dead_letters(run, out)
        elif until:
            self._in_flight.delay(run, until)
        else:
            self._in_flight.redeliver(run)

    def backoff_end(self, run: Run, failures: int, now: float) -> float:
        """The time at which a message that failed this often is redelivered; 0: at once."""
        status = self._status
        wait = delay_of(status.config.backoff, failures, f"{status.name} {run.start}") if failures > 0 else 0.0
        return now + wait if wait else 0.0

    def deliveries(self, offset: int) -> Deliveries:
        """The delivery history of a message that is being moved to the dead-letter topic."""
        for run in self._in_flight.pick(offset, offset + 1, MOVING, None)[0]:
            return Deliveries(run.failure or UNKNOWN, run.first, run.last)
        return Deliveries(UNKNOWN, 0.0, 0.0)

    def end_flight(self, holder: Consumer, count: int) -> None:
        """Messages of a consumer are no longer in flight."""
        holder.in_flight -= count
        self._consumers.rate(holder)

    def move_to_dead_letters(self, run: Run, out: list[Action]) -> None:
        """Move messages to the dead-letter topic."""
        self._in_flight.move(run)
        out.append(MoveToDeadLetters((run.start, run.end - run.start), run.deliveries))

    def end_soon(self, take: Take) -> None:
        """End a take with the messages that are available now."""
        self._brief.append(take)

    def end_take(self, take: Take, out: list[Action]) -> None:
        if take.over:
            return
        take.over = True
        consumer = take.consumer
        consumer.takes.remove(take)
        consumer.wanted -= take.left
        self._consumers.rate(consumer)
        out.append(TakeDone(consumer.who, take.number, take.got))

    def record_done(self, pieces: Iterable[tuple[int, int]], out: list[Action]) -> None:
        """Write the floor and the done ranges above it to the journal. Messages that are not selected are done, too."""
        held, floor, cursor = self._in_flight, self.floor, self._backlog.cursor
        spans: list[Span] = []
        upto = floor
        for start, end in sorted(pieces):
            if end > upto:
                low, upto = held.around(start, floor, cursor)
                spans.append((low, upto - low))
        self._status.recorded = floor
        out.append(Write(Done(self._status.name, self._status.epoch, floor, tuple(spans))))

    def lease_end(self, consumer: Consumer | None, now: float) -> float:
        """The end of the lease of a message that this consumer gets or extends now.

        A consumer that renews its leases gets a shorter lease with its next renewal, and has the longer one until then.
        """
        lease = self._status.config.lease or inf
        return now + (lease if consumer is None else max(lease, consumer.lease))
