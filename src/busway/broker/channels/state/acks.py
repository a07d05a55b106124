"""The acknowledgements of a channel's machine: done, failed, rejected, extended and dead-lettered messages."""

from collections.abc import Callable, Iterable
from math import inf

from busway.broker.channels.dead_letters.failures import Failure
from busway.broker.channels.state.actions import AckResult, Action, Write
from busway.broker.channels.state.consumers import Consumers, Who
from busway.broker.channels.state.dispatch import Dispatch
from busway.broker.channels.state.in_flight import FLIGHT, MOVING, InFlight, Run
from busway.broker.channels.state.progress import Delivered, Span
from busway.broker.channels.state.status import Status
from busway.common.intervals import Intervals


class Acks:
    """The acknowledgements of one channel: each method returns an AckResult and the actions that follow."""

    def __init__(self, status: Status, consumers: Consumers, in_flight: InFlight, dispatch: Dispatch) -> None:
        self._status = status
        self._consumers = consumers
        self._in_flight = in_flight
        self._dispatch = dispatch

    def ack(self, consumer: Who, spans: Iterable[Span], now: float) -> list[Action]:
        """These messages are done, also waiting ones. Those in flight at another consumer are refused."""
        holder = self._consumers.get(consumer)
        asked = freed = waited = others = 0
        pieces: list[tuple[int, int]] = []
        named: list[Span] = []
        for start, count in spans:
            asked += count
            named.append((start, count))
            finished = self._in_flight.finish(start, start + count, holder, pieces)
            freed += finished[0]
            waited += finished[1]
            others += finished[2]
        out: list[Action] = [self._result(consumer, asked, freed + waited, others, named, pieces)]
        if pieces:
            self._dispatch.record_done(pieces, out)
            if freed and holder:
                self._dispatch.end_flight(holder, freed)
            self._dispatch.pump(now, out)
        return out

    def nack(
        self,
        consumer: Who,
        spans: Iterable[Span],
        delay: float | None,
        now: float,
        *,
        counted: bool = True,
        failure: Failure | None = None,
    ) -> list[Action]:
        """The consumer failed on these messages: they are redelivered after the delay, or by default after the backoff.

        Not counted: the consumer has not processed them, so this was no failed delivery.
        """
        out: list[Action] = []

        def end_delivery(run: Run) -> None:
            if delay is None:
                until = self._dispatch.backoff_end(run, run.deliveries, now)
            else:
                until = now + delay if delay else 0.0
            if not counted:
                self._uncount(run, out)
            self._dispatch.end_delivery(run, out, failure, until)

        answer = self._each_held(consumer, spans, end_delivery)
        return self._dispatch.pump(now, [answer, *out])

    def reject(self, consumer: Who, spans: Iterable[Span], now: float, *, failure: Failure) -> list[Action]:
        """No consumer can process these messages: they become dead letters, after any number of deliveries."""
        out: list[Action] = []

        def move(run: Run) -> None:
            assert run.holder is not None
            self._dispatch.end_flight(run.holder, run.end - run.start)
            run.failure = failure
            self._dispatch.move_to_dead_letters(run, out)

        answer = self._each_held(consumer, spans, move)
        return self._dispatch.pump(now, [answer, *out])

    def extend(self, consumer: Who, spans: Iterable[Span], now: float) -> list[Action]:
        """The consumer still works on these messages: their leases begin anew."""
        until = self._dispatch.lease_end(self._consumers.get(consumer), now)

        def renew(run: Run) -> None:
            run.until = until
            if until < run.alarm:
                self._in_flight.wake(run)

        return [self._each_held(consumer, spans, renew)]

    def renew(self, consumer: Who, now: float) -> list[Action]:
        """The consumer is alive: the leases of all its messages in flight begin anew, except those of lapse()."""
        holder = self._consumers.get(consumer)
        if holder is None:
            return [AckResult(consumer, 0, 0, 0)]
        holder.lease = self._status.config.lease or inf
        holder.until = now + holder.lease
        return [AckResult(consumer, holder.in_flight, 0, 0)]

    def lapse(self, consumer: Who, spans: Iterable[Span]) -> list[Action]:
        """The consumer has worked on these messages for too long: renew() does not extend their leases any more."""
        holder = self._consumers.get(consumer)
        named, pieces = list(spans), list[tuple[int, int]]()
        for start, count in named:
            for run in self._in_flight.pick(start, start + count, FLIGHT, holder)[0] if holder is not None else ():
                run.lapsed = True
                pieces.append((run.start, run.end))
        good = sum(end - start for start, end in pieces)
        return [AckResult(consumer, good, 0, 0, _without(named, pieces))]

    def dead_done(self, offset: int, now: float, count: int = 1) -> list[Action]:
        """These messages are stored in the dead-letter topic, so they are done."""
        out: list[Action] = []
        runs, _ = self._in_flight.pick(offset, offset + count, MOVING, None)
        for run in runs:
            self._in_flight.remove(run)
            self._status.dead += run.end - run.start
        if runs:
            self._dispatch.record_done([(run.start, run.end) for run in runs], out)
        return self._dispatch.pump(now, out)

    def dead_failed(self, offset: int, delay: float, now: float, count: int = 1) -> None:
        """These messages could not be stored in the dead-letter topic. That is retried after a delay."""
        for run in self._in_flight.pick(offset, offset + count, MOVING, None)[0]:
            self._in_flight.move(run, now + delay)

    def _uncount(self, run: Run, out: list[Action]) -> None:
        if self._status.counts(run.deliveries):
            spans = ((run.start, run.end - run.start),)
            out.append(Write(Delivered(self._status.name, self._status.epoch, run.deliveries - 1, spans)))
        run.deliveries -= 1

    def _each_held(self, consumer: Who, spans: Iterable[Span], act: Callable[[Run], None]) -> AckResult:
        """Apply a function to those messages that the consumer has in flight, span by span: spans may overlap."""
        holder = self._consumers.get(consumer)
        asked = good = in_others = 0
        named: list[Span] = []
        pieces: list[tuple[int, int]] = []
        for start, count in spans:
            asked += count
            named.append((start, count))
            if holder is None:
                continue
            runs, others = self._in_flight.pick(start, start + count, FLIGHT, holder)
            in_others += others
            for run in runs:
                good += run.end - run.start
                pieces.append((run.start, run.end))
                act(run)
        return self._result(consumer, asked, good, in_others, named, pieces)

    def _result(
        self, consumer: Who, asked: int, good: int, refused: int, named: list[Span], pieces: list[tuple[int, int]]
    ) -> AckResult:
        """Count late and refused messages."""
        late = asked - good - refused
        self._status.late += late
        self._status.refused += refused
        return AckResult(consumer, good, late, refused, () if good == asked else _without(named, pieces))


def _without(named: list[Span], done: list[tuple[int, int]]) -> tuple[Span, ...]:
    """The parts of the spans that are in none of the pieces."""
    runs = Intervals()
    for start, count in named:
        runs.put(start, start + count)
    for start, end in done:
        runs.put(start, end, 0)
    return tuple((start, end - start) for start, end, _ in runs)
