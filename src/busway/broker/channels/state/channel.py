"""A channel: who gets which message of a stream, how often, and until when it has to be acknowledged.

A machine: no clock, no socket, no disk. It is told what happened and when, and hands back what is to be done. It knows
messages by their offsets only and works on spans of them. Below the cursor each message that the channel chooses is held
(see `held`) or done; from there on nothing was handed out. What is done and noted is never handed out again, not even after
a crash; everything else is handed out until it is acknowledged or dead.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final

import msgspec

from busway.broker.channels.dead_letters.failures import Failure, expired, left_behind
from busway.broker.channels.state.actions import (
    AckResult,
    Action,
    ChannelBusy,
    Delete,
    NotIdle,
    ReportLost,
    Rewound,
    SeekFailed,
    TakeDone,
    Write,
)
from busway.broker.channels.state.backlog import Keys
from busway.broker.channels.state.consumers import Take, Who
from busway.broker.channels.state.in_flight import AGAIN, BEHIND, DYING, FLIGHT, LATER, Phase, Run
from busway.broker.channels.state.progress import (
    ChannelConfig,
    ChannelState,
    Configured,
    Deleted,
    Delivered,
    Lost,
    Redriven,
    Sought,
    Span,
)
from busway.broker.channels.state.suspension import Suspension
from busway.common.intervals import Intervals
from busway.errors import Code, LimitExceeded

REDRIVEN: Final = 100_000
"""The most separate runs of messages that were sent back, and that a channel may hold to send some back."""


class Channel(Suspension):
    """One channel, from the state that its journal has. open() comes first."""

    # The stream.

    def open(self, first: int, safe: int, now: float, *, copy: bool = False) -> list[Action]:
        """What the stream holds when the channel begins. Of a copy, which may lack the end, nothing else is concluded from that."""
        self._safe = max(safe, self._ahead.past.last) if copy else safe
        out = [] if copy else self._rewound(safe)
        return out + self.trimmed(first, now)

    def settled(self, end: int, now: float) -> list[Action]:
        """The stream ends here, and nothing that it has lost comes back there: the same as if the channel was opened now."""
        if self._ahead.past.last > end:
            self._safe = end
        return self._pump(now, self._rewound(end))

    def _rewound(self, end: int) -> list[Action]:
        """Other messages come where the stream was further once."""
        past = self._ahead.past
        if (last := past.last) <= end:
            return []
        cursor = min(self.cursor, end)
        state = ChannelState(
            self.name,
            self.config,
            self._epoch + 1,
            min(self.floor, end),
            redriven=past.redriven.copy(),
            lost=self.lost,
            told=self._told,
        )
        self._put_done(state, state.floor, end)
        for run in self._held:
            if self._counts(run.deliveries):
                state.deliveries.put(run.start, run.end, run.deliveries)
        old, counts = list(past.done), list(past.deliveries)
        self._epoch = state.epoch
        past.move(self._epoch, cursor)
        for start, upto, _ in old:
            past.done.put(max(start, cursor), min(upto, end))
        for start, upto, count in counts:
            past.deliveries.put(max(start, cursor), min(upto, end), count)
            state.deliveries.put(max(start, cursor), min(upto, end), count)
        past.raise_floor(past.done.beyond(cursor))
        state.raise_floor(state.done.beyond(state.floor))
        past.begin = state.begin = self._noted = state.floor
        self._ahead.again(past.floor)
        return [Rewound(last, end), *map(Write, state.entries())]

    def appended(self, safe: int, now: float) -> list[Action]:
        """The stream has more."""
        self._safe = max(self._safe, safe)
        self._ahead.more()
        return self._pump(now, [])

    def found(
        self,
        ticket: int,
        spans: Iterable[Span],
        next_: int,
        now: float,
        keys: Keys | None = None,
    ) -> list[Action]:
        """The answer to a Read: what it found before `next_`, in order; with `order_by` also the key of each message.

        One that was asked for before the channel went elsewhere is of no interest.
        """
        return self._pump(now, []) if self._ahead.found(ticket, spans, next_, keys) else []

    def trimmed(self, first: int, now: float) -> list[Action]:
        """The stream has dropped everything below this offset."""
        self._first = max(self._first, first)
        if first <= self.floor:
            return self._pump(now, [])
        nobody: list[Span] = []
        out: list[Action] = []
        for run in self._held.cut_below(first):
            span = run.start, run.end - run.start
            if holder := run.holder:
                self._landed(holder, span[1])
                out.append(ReportLost(holder.who, [span]))
            else:
                nobody.append(span)
        nobody += self._ahead.trim(first)
        if nobody:
            out.append(ReportLost(None, nobody))
        count = sum(count for one in out if isinstance(one, ReportLost) for _, count in one.spans)
        if count:
            unreported = 0 if self._consumers else sum(count for _, count in nobody)
            self.lost += count
            self._told += count - unreported
            out.append(self._note_lost())
        return self._pump(now, out)

    def _note_lost(self) -> Write:
        self._noted = self.floor
        return Write(Lost(self.name, self._epoch, self.floor, self.lost, self._told))

    def _report_lost(self, consumer: Who) -> list[Action]:
        """Tell a consumer, who is the first to come, of messages that were lost while there was none."""
        count = min(self.lost - self._told, self._first)
        if not count:
            return []
        self._told = self.lost
        return [ReportLost(consumer, [(self._first - count, count)], before=True), self._note_lost()]

    def skip(self, spans: Iterable[Span], now: float) -> list[Action]:
        """These can't be handed out: they have expired or can't be read. They count as done."""
        for start, count in spans:
            for run in self._held.cut_out(start, start + count):
                if run.holder:
                    self._landed(run.holder, run.end - run.start)
        return self._pump(now, [])

    # Consumers.

    def join(self, consumer: Who, window: int, now: float, name: str = "") -> list[Action]:
        """One more consumer, or another window for one that is there. With window 0 it gets only what it takes."""
        if not self._consumers.get(consumer):
            self.check_free()
        self._consumers.join(consumer, window, name)
        self._alone = inf
        return self._pump(now, self._report_lost(consumer))

    def check_free(self, *, exclusive: bool = False) -> None:
        """Raise ChannelBusy if nobody else may consume it, or if it can't be exclusive since somebody does."""
        if self._consumers and self.config.exclusive:
            raise ChannelBusy(f"the channel {self.name!r} is exclusive and has a consumer")
        if self._consumers and exclusive:
            raise ChannelBusy(f"the channel {self.name!r} has a consumer already, so nobody can have it exclusively")

    def leave(self, consumer: Who, now: float, *, lost: bool = False, grace: float = 0.0) -> list[Action]:
        """A consumer leaves, or is lost: what it did not acknowledge is redelivered, at once.

        A message that lost its consumer more than once may be what kills them: it waits as the backoff says, which counts
        one failure less than deliveries. With a time of grace the consumer may come back.
        """
        gone = self._consumers.leave(consumer)
        if gone is None:
            return []
        if not self._consumers:
            if self.config.delete_on_leave and grace <= 0:
                return self._delete()
            self.alone(now + grace)
        out: list[Action] = []
        for run in [run for run in self._held if run.holder is gone]:
            self._back(run, out, left_behind(gone.name), self._pause(run, run.deliveries - 1, now) if lost else 0.0)
        return self._pump(now, out)

    def alone(self, until: float) -> None:
        """Nobody is here. One that goes with its last consumer waits for another one until then."""
        if self.config.delete_on_leave:
            self._alone = until

    def stop(self, consumer: Who) -> None:
        """It can't be given more for now, whatever its window says: its connection is full."""
        if one := self._consumers.get(consumer):
            one.stopped = True
            self._consumers.rate(one)

    def go_on(self, consumer: Who, now: float) -> list[Action]:
        """It can be given more again."""
        if one := self._consumers.get(consumer):
            one.stopped = False
            self._consumers.rate(one)
        return self._pump(now, [])

    def take(
        self, consumer: Who, number: int, most: int, timeout: float, now: float, *, whole: bool = True
    ) -> list[Action]:
        """Up to so many messages: what is there at once, the rest as it comes, until there are enough or the time is over.

        Not whole: it ends as soon as it has something and nothing more is there.
        """
        one = self._consumers.get(consumer)
        if one is None or most <= 0:
            return [TakeDone(consumer, number, 0)]
        take = Take(one, number, most, now + timeout if timeout > 0 else inf, whole)
        one.takes.append(take)
        one.wanted += most
        self._consumers.rate(one)
        if timeout <= 0:
            self._brief.append(take)
        out = self._pump(now, [])
        if timeout > 0 and not take.over and timeout != inf:
            self._held.wake(take)
        return out

    def takes(self, consumer: Who) -> int:
        """How many of its takes wait."""
        one = self._consumers.get(consumer)
        return len(one.takes) if one is not None else 0

    def cancel_take(self, consumer: Who, number: int, now: float) -> list[Action]:
        """The consumer no longer waits. What it got is in flight."""
        out: list[Action] = []
        if one := self._consumers.get(consumer):
            for take in [take for take in one.takes if take.number == number]:
                self._end_take(take, out)
        return self._pump(now, out)

    # Acknowledgements.

    def ack(self, consumer: Who, spans: Iterable[Span], now: float) -> list[Action]:
        """These are done. What waits to be handed out again is done too; what somebody else has by now stays with that one."""
        holder = self._consumers.get(consumer)
        held = self._held
        asked = freed = waited = elsewhere = 0
        pieces: list[tuple[int, int]] = []
        named: list[Span] = []
        for start, count in spans:
            asked += count
            named.append((start, count))
            one, two, three = held.finish(start, start + count, holder, pieces)
            freed += one
            waited += two
            elsewhere += three
        good = freed + waited
        late = asked - good - elsewhere
        self.late += late
        self.refused += elsewhere
        left = () if good == asked else _without(named, pieces)
        out: list[Action] = [AckResult(consumer, good, late, elsewhere, left)]
        if pieces:
            self._note_done(pieces, out)
            if freed and holder:
                self._landed(holder, freed)
            self._pump(now, out)
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
        """The consumer could not deal with these: they are redelivered after the delay, without one as the backoff says.

        Not counted: the consumer has not even looked at them, so nothing speaks against the messages.
        """
        out: list[Action] = []

        def give_back(run: Run) -> None:
            until = self._pause(run, run.deliveries, now) if delay is None else now + delay if delay else 0.0
            if not counted:
                self._uncount(run, out)
            self._back(run, out, failure, until)

        answer = self._each_own(consumer, spans, give_back)
        return self._pump(now, [answer, *out])

    def reject(self, consumer: Who, spans: Iterable[Span], now: float, *, failure: Failure) -> list[Action]:
        """No consumer will ever be able to deal with these: they are dead letters, however often they were delivered."""
        out: list[Action] = []

        def let_die(run: Run) -> None:
            assert run.holder is not None
            self._landed(run.holder, run.end - run.start)
            run.failure = failure
            self._die(run, out)

        answer = self._each_own(consumer, spans, let_die)
        return self._pump(now, [answer, *out])

    def extend(self, consumer: Who, spans: Iterable[Span], now: float) -> list[Action]:
        """It is still at work on these: their lease begins anew."""
        until = self._lease_end(self._consumers.get(consumer), now)

        def renew(run: Run) -> None:
            run.until = until
            if until < run.alarm:
                self._held.wake(run)

        return [self._each_own(consumer, spans, renew)]

    def renew(self, consumer: Who, now: float) -> list[Action]:
        """It is alive, and so are the leases of all messages that it has in flight, but for those of lapse()."""
        holder = self._consumers.get(consumer)
        if holder is None:
            return [AckResult(consumer, 0, 0, 0)]
        holder.lease = self.config.lease or inf
        holder.until = now + holder.lease
        return [AckResult(consumer, holder.in_flight, 0, 0)]

    def lapse(self, consumer: Who, spans: Iterable[Span]) -> list[Action]:
        """It works on these for too long: renew() does not extend their leases any more."""
        holder = self._consumers.get(consumer)
        named, pieces = list(spans), list[tuple[int, int]]()
        for start, count in named:
            for run in self._held.pick(start, start + count, FLIGHT, holder)[0] if holder is not None else ():
                run.lapsed = True
                pieces.append((run.start, run.end))
        good = sum(end - start for start, end in pieces)
        return [AckResult(consumer, good, 0, 0, _without(named, pieces))]

    def dead_done(self, offset: int, now: float, count: int = 1) -> list[Action]:
        """These are in the dead-letter topic, so they are done here."""
        out: list[Action] = []
        runs, _ = self._held.pick(offset, offset + count, DYING, None)
        for run in runs:
            self._held.remove(run)
            self.dead += run.end - run.start
        if runs:
            self._note_done([(run.start, run.end) for run in runs], out)
        return self._pump(now, out)

    def dead_failed(self, offset: int, delay: float, now: float, count: int = 1) -> None:
        """They could not be stored there. They are tried again after a delay."""
        for run in self._held.pick(offset, offset + count, DYING, None)[0]:
            self._held.dying(run, now + delay)

    # Time and settings.

    def expire(self, now: float) -> list[Action]:
        """What follows from the time that has passed."""
        if now >= self._alone:
            return self._delete()
        out: list[Action] = []
        while item := self._held.ripe(now):
            if isinstance(item, Take):
                self._end_take(item, out)
            elif item.phase is FLIGHT:
                assert item.holder is not None
                if item.holder.until > now and not item.lapsed:
                    self._held.extend(item, item.holder.until)
                else:
                    failure = expired(item.holder.name, self.config.lease)
                    self._back(item, out, failure, self._pause(item, item.deliveries, now))
            elif item.phase is LATER:
                self._held.again(item)
            else:
                self._die(item, out)
        return self._pump(now, out)

    def deadline(self) -> float | None:
        """When expire() is to be called next."""
        when = self._held.deadline()
        return when if self._alone == inf else min(inf if when is None else when, self._alone)

    def seek(self, offset: int, now: float) -> list[Action]:
        """Go to an offset: it and all behind it are handed out, whatever was acknowledged; nothing before it is.

        What is in flight is so no longer; its consumers may have it twice.
        """
        if not self._first <= offset <= self._safe:
            raise SeekFailed(f"offset {offset} is not in the stream, which has {self._first} to {self._safe}")
        self._begin_anew()
        self.moved = True
        self._epoch += 1
        self._ahead.past.move(self._epoch, offset)
        self._ahead.again(offset)
        self._noted = offset
        return self._pump(now, [Write(Sought(self.name, self._epoch, offset))])

    def redrive(
        self, letters: Iterable[tuple[int, int]], now: float, keys: Mapping[int, int | None] | None = None
    ) -> list[Action]:
        """Deliver messages again whose dead letters are sent back: each letter is an offset and the epoch in which it was made.

        With `order_by` the keys of their messages are given, too. A letter that was sent back before is left out, so nothing comes twice. What is not done comes anyway.
        """
        past, cursor = self._ahead.past, self.cursor
        sent = Intervals()
        for offset, epoch in letters:
            if self._first <= offset < self._safe and not self.was_redriven(offset, epoch):
                sent.put(offset, offset + 1)
        for run in self._held:
            if run.phase is DYING:  # it becomes a letter, and that is sent back later
                sent.put(run.start, run.end, 0)
        if not sent:
            return []
        undone = sent.copy()
        for run in self._held:
            undone.put(run.start, run.end, 0)
        if len(self._held) + len(undone) > REDRIVEN or len(past.redriven) > REDRIVEN:
            raise LimitExceeded(
                f"channel {self.name!r} has too many separate messages to deliver; redrive more when some are done",
                code=Code.TOO_MANY_PENDING,
            )
        undone_below = ((start, min(end, cursor)) for start, end, _ in undone)
        for start, end in undone_below:
            if keys is not None:
                for offset in range(start, end):
                    self._held.put_back(offset, offset + 1, keys[offset])
            elif start < end:
                self._held.put_back(start, end)
        self._epoch += 1
        spans = tuple((start, end - start) for start, end, _ in sent)
        ahead = [(max(start, cursor), end) for start, end, _ in undone if end > cursor]
        past.redrive(self._epoch, [(start, end - start) for start, end in ahead])
        past.begin = min(past.begin, spans[0][0])
        past.sent_back(self._epoch, spans)
        if ahead:
            self._ahead.again(cursor)
        self._noted = min(self._noted, self.floor)
        return self._pump(now, [Write(Redriven(self.name, self._epoch, spans))])

    def was_redriven(self, offset: int, epoch: int) -> bool:
        """Whether the dead letter of a message was sent back that was made in this epoch."""
        return next(self._ahead.past.redriven.pieces(offset, offset + 1))[2] > epoch

    def pause(self) -> list[Action]:
        """Hand nothing out until resume(). What is in flight stays so."""
        return self.configure(msgspec.structs.replace(self.config, paused=True), 0.0)

    def resume(self, now: float) -> list[Action]:
        return self.configure(msgspec.structs.replace(self.config, paused=False), now)

    def configure(self, config: ChannelConfig, now: float) -> list[Action]:
        """Other settings. They hold for what is handed out from now on."""
        if config == self.config:
            return []
        if config.exclusive and len(self._consumers) > 1:
            raise ChannelBusy(
                f"the channel {self.name!r} has {len(self._consumers)} consumers, so it can't be exclusive"
            )
        if config.order_by != self.config.order_by:
            self._read_again()
        elif not config.same_choice(self.config):
            self._ahead.again(self.cursor)
        self.config = config
        if not config.delete_on_leave:
            self._alone = inf
        return self._pump(now, [Write(Configured(self.name, config))])

    @property
    def _done_ahead(self) -> int:
        """How many messages from the cursor on were done before the channel was opened."""
        pieces = self._ahead.past.done.pieces(self.cursor, self._safe)
        return sum(end - start for start, end, done in pieces if done)

    def figures(self) -> dict[str, Any]:
        counts = dict.fromkeys(Phase, 0)
        for run in self._held:
            counts[run.phase] += run.end - run.start
        return {
            "floor": self.floor,
            "cursor": self.cursor,
            "lag": self._safe - self.cursor - self._done_ahead + sum(counts.values()),
            "in_flight": counts[FLIGHT],
            "waiting": counts[AGAIN] + counts[LATER] + counts[BEHIND],
            "dying": counts[DYING],
            "redelivered": self.redelivered,
            "dead": self.dead,
            "late": self.late,
            "refused": self.refused,
            "lost": self.lost,
            "consumers": len(self._consumers),
            "takes": sum(len(one.takes) for one in self._consumers),
            "ranges": len(self._held),
            "full": len(self._held) >= self._ranges,
            "paused": self.config.paused,
        }

    # Inside.

    def _read_again(self) -> None:
        """Forget what is held and read it again from the stream, to learn the keys, or because they do not count any more."""
        busy = sum(run.end - run.start for run in self._held if run.phase in {FLIGHT, DYING})
        if busy:
            raise NotIdle(
                f"the channel {self.name!r} has {busy} messages in flight, so order_by can't be changed: "
                "stop its consumers first, or make another channel"
            )
        past, floor = self._ahead.past, self.floor
        past.floor = floor
        begin = floor
        for run in self._held:
            past.done.put(begin, run.start)
            past.deliveries.put(run.start, run.end, run.deliveries)
            begin = run.end
        past.done.put(begin, self.cursor)
        self._begin_anew()
        self._ahead.again(floor)

    def _uncount(self, run: Run, out: list[Action]) -> None:
        if self._counts(run.deliveries):
            spans = ((run.start, run.end - run.start),)
            out.append(Write(Delivered(self.name, self._epoch, run.deliveries - 1, spans)))
        run.deliveries -= 1

    def _each_own(self, consumer: Who, spans: Iterable[Span], act: Callable[[Run], None]) -> AckResult:
        """Do something with what this consumer has in flight of these, span by span: they may name a message twice."""
        holder = self._consumers.get(consumer)
        asked = good = elsewhere = 0
        named: list[Span] = []
        pieces: list[tuple[int, int]] = []
        for start, count in spans:
            asked += count
            named.append((start, count))
            if holder is None:
                continue
            runs, others = self._held.pick(start, start + count, FLIGHT, holder)
            elsewhere += others
            for run in runs:
                good += run.end - run.start
                pieces.append((run.start, run.end))
                act(run)
        late = asked - good - elsewhere
        self.late += late
        self.refused += elsewhere
        return AckResult(consumer, good, late, elsewhere, () if good == asked else _without(named, pieces))

    def _delete(self) -> list[Action]:
        return [Write(Deleted(self.name)), Delete(self.name)]


def _without(named: list[Span], done: list[tuple[int, int]]) -> tuple[Span, ...]:
    """What of these spans is in none of the pieces."""
    runs = Intervals()
    for start, count in named:
        runs.put(start, start + count)
    for start, end in done:
        runs.put(start, end, 0)
    return tuple((start, end - start) for start, end, _ in runs)
