"""The machine of one channel: which consumer gets which message, how often, and until when it has to be acknowledged.

It has no clock, socket or disk. Its driver reports events with their time, and carries out the actions that it
returns. The machine knows messages by their offsets and works on spans of them. Below the cursor each message that the
channel chooses is in flight (see `in_flight`) or done; nothing from the cursor on was delivered. What is done and
recorded is never delivered again, not even after a crash. Everything else is delivered until it is acknowledged or
becomes a dead letter.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import msgspec

from busway.broker.channels.dead_letters.failures import Deliveries, expired, left_behind
from busway.broker.channels.state.acks import Acks
from busway.broker.channels.state.actions import (
    Action,
    ChannelBusy,
    Delete,
    ReportLost,
    TakeDone,
    Write,
)
from busway.broker.channels.state.backlog import Backlog, Keys
from busway.broker.channels.state.consumers import Consumers, Take, Who
from busway.broker.channels.state.dispatch import RANGES, Dispatch
from busway.broker.channels.state.in_flight import BEHIND, DELAYED, DUE, FLIGHT, MOVING, InFlight, Phase
from busway.broker.channels.state.merge import Merge
from busway.broker.channels.state.progress import (
    ChannelConfig,
    ChannelState,
    Configured,
    Deleted,
    Lost,
    Span,
)
from busway.broker.channels.state.reposition import Reposition
from busway.broker.channels.state.status import Status


class Channel:
    """The machine of one channel, made from the state in its journal. The driver calls open() first."""

    def __init__(self, state: ChannelState, *, ranges: int = RANGES) -> None:
        state = state.copy()  # it continues from there
        self._alone = inf
        """The time at which a channel without consumers is deleted, if it has `delete_on_leave`."""
        self.status = Status.of(state)
        self.consumers = Consumers()
        self.in_flight = InFlight()
        self.backlog = Backlog(state)
        self.dispatch = Dispatch(self.status, self.consumers, self.in_flight, self.backlog, ranges=ranges)
        self.reposition = Reposition(self.status, self.consumers, self.in_flight, self.backlog, self.dispatch)
        self.acks = Acks(self.status, self.consumers, self.in_flight, self.dispatch)
        self._merge = Merge(self.status, self.in_flight, self.backlog, self.dispatch, self.reposition)

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def config(self) -> ChannelConfig:
        return self.status.config

    @property
    def epoch(self) -> int:
        """Changes whenever the channel moves to another position."""
        return self.status.epoch

    @property
    def first(self) -> int:
        """The first offset that the stream still has, as last reported by the driver."""
        return self.status.first

    @property
    def cursor(self) -> int:
        """No message from this offset on was delivered."""
        return self.backlog.cursor

    @property
    def floor(self) -> int:
        """All messages below this offset are done."""
        return self.dispatch.floor

    @property
    def more(self) -> bool:
        """Whether there may be something to deliver."""
        return self.dispatch.more

    @property
    def suspended(self) -> bool:
        """Whether another broker delivers from the channel."""
        return self.status.suspended

    # The stream.

    def open(self, first: int, safe: int, now: float, *, copy: bool = False) -> list[Action]:
        """Begin with the bounds of the stream. A copy may lack its end, so the channel is not rewound to it."""
        self.status.safe = max(safe, self.backlog.past.last) if copy else safe
        out = [] if copy else self.reposition.rewind(safe)
        return out + self.trimmed(first, now)

    def end_confirmed(self, end: int, now: float) -> list[Action]:
        """The end of the stream is final, and lost messages behind it do not come back: rewind the channel to it."""
        if self.backlog.past.last > end:
            self.status.safe = end
        return self.dispatch.pump(now, self.reposition.rewind(end))

    def appended(self, safe: int, now: float) -> list[Action]:
        """The stream has more."""
        self.status.safe = max(self.status.safe, safe)
        self.backlog.more()
        return self.dispatch.pump(now, [])

    def found(
        self,
        ticket: int,
        spans: Iterable[Span],
        next_: int,
        now: float,
        keys: Keys | None = None,
    ) -> list[Action]:
        """The answer to a Read: the messages found before `next_`, in order, and with `order_by` their keys.

        The answer to a Read from before the channel moved is ignored.
        """
        return self.dispatch.pump(now, []) if self.backlog.found(ticket, spans, next_, keys) else []

    def trimmed(self, first: int, now: float) -> list[Action]:
        """The stream has dropped everything below this offset."""
        status = self.status
        status.first = max(status.first, first)
        if first <= self.floor:
            return self.dispatch.pump(now, [])
        unassigned: list[Span] = []
        out: list[Action] = []
        for run in self.in_flight.cut_below(first):
            span = run.start, run.end - run.start
            if holder := run.holder:
                self.dispatch.end_flight(holder, span[1])
                out.append(ReportLost(holder.who, [span]))
            else:
                unassigned.append(span)
        unassigned += self.backlog.trim(first)
        if unassigned:
            out.append(ReportLost(None, unassigned))
        count = sum(count for action in out if isinstance(action, ReportLost) for _, count in action.spans)
        if count:
            unreported = 0 if self.consumers else sum(count for _, count in unassigned)
            status.lost += count
            status.lost_reported += count - unreported
            out.append(self._record_lost())
        return self.dispatch.pump(now, out)

    def _record_lost(self) -> Write:
        status = self.status
        status.recorded = self.floor
        return Write(Lost(status.name, status.epoch, status.recorded, status.lost, status.lost_reported))

    def _report_lost(self, consumer: Who) -> list[Action]:
        """Report messages that were lost while there was no consumer to the first one that joins."""
        status = self.status
        count = min(status.lost - status.lost_reported, status.first)
        if not count:
            return []
        status.lost_reported = status.lost
        return [ReportLost(consumer, [(status.first - count, count)], before=True), self._record_lost()]

    def skip(self, spans: Iterable[Span], now: float) -> list[Action]:
        """These messages have expired or can't be read. They count as done."""
        for start, count in spans:
            for run in self.in_flight.cut_out(start, start + count):
                if run.holder:
                    self.dispatch.end_flight(run.holder, run.end - run.start)
        return self.dispatch.pump(now, [])

    # Consumers.

    def join(self, consumer: Who, window: int, now: float, name: str = "") -> list[Action]:
        """Add a consumer, or change its window. With window 0 it gets only what it takes."""
        if not self.consumers.get(consumer):
            self.check_free()
        self.consumers.join(consumer, window, name)
        self._alone = inf
        return self.dispatch.pump(now, self._report_lost(consumer))

    def check_free(self, *, exclusive: bool = False) -> None:
        """Raise ChannelBusy if the channel takes no further consumer, or can't be exclusive because it has one."""
        if self.consumers and self.config.exclusive:
            raise ChannelBusy(f"the channel {self.name!r} is exclusive and has a consumer")
        if self.consumers and exclusive:
            raise ChannelBusy(f"the channel {self.name!r} has a consumer already, so it can't be consumed exclusively")

    def leave(self, consumer: Who, now: float, *, lost: bool = False, grace: float = 0.0) -> list[Action]:
        """A consumer leaves or is lost: its unacknowledged messages are redelivered at once.

        A message that lost its consumer more than once may be the cause. It is redelivered after the backoff, which
        counts one failure less than deliveries. With a grace period the consumer may come back.
        """
        gone = self.consumers.leave(consumer)
        if gone is None:
            return []
        if not self.consumers:
            if self.config.delete_on_leave and grace <= 0:
                return self._delete()
            self.alone(now + grace)
        out: list[Action] = []
        for run in [run for run in self.in_flight if run.holder is gone]:
            until = self.dispatch.backoff_end(run, run.deliveries - 1, now) if lost else 0.0
            self.dispatch.end_delivery(run, out, left_behind(gone.name), until)
        return self.dispatch.pump(now, out)

    def alone(self, until: float) -> None:
        """The channel has no consumer. With `delete_on_leave` it is deleted at this time, unless a consumer joins."""
        if self.config.delete_on_leave:
            self._alone = until

    def stop(self, consumer: Who) -> None:
        """The connection of the consumer is full: it gets no more messages until unstop()."""
        if holder := self.consumers.get(consumer):
            holder.stopped = True
            self.consumers.rate(holder)

    def unstop(self, consumer: Who, now: float) -> list[Action]:
        """The connection of the consumer has room again."""
        if holder := self.consumers.get(consumer):
            holder.stopped = False
            self.consumers.rate(holder)
        return self.dispatch.pump(now, [])

    def take(
        self, consumer: Who, number: int, most: int, timeout: float, now: float, *, whole: bool = True
    ) -> list[Action]:
        """Deliver up to this many messages: available ones at once, the rest as they come, until the take is complete.

        It ends earlier at its timeout. Not whole: it also ends as soon as it has a message and no more are available.
        """
        holder = self.consumers.get(consumer)
        if holder is None or most <= 0:
            return [TakeDone(consumer, number, 0)]
        take = Take(holder, number, most, now + timeout if timeout > 0 else inf, whole)
        holder.takes.append(take)
        holder.wanted += most
        self.consumers.rate(holder)
        if timeout <= 0:
            self.dispatch.end_soon(take)
        out = self.dispatch.pump(now, [])
        if timeout > 0 and not take.over and timeout != inf:
            self.in_flight.wake(take)
        return out

    def takes(self, consumer: Who) -> int:
        """The number of pending takes of a consumer."""
        holder = self.consumers.get(consumer)
        return len(holder.takes) if holder is not None else 0

    def cancel_take(self, consumer: Who, number: int, now: float) -> list[Action]:
        """Cancel a take. The messages that it has got stay in flight."""
        out: list[Action] = []
        if holder := self.consumers.get(consumer):
            for take in [take for take in holder.takes if take.number == number]:
                self.dispatch.end_take(take, out)
        return self.dispatch.pump(now, out)

    def count_in_flight(self, who: Who) -> int:
        """The number of messages that a consumer has in flight."""
        consumer = self.consumers.get(who)
        return 0 if consumer is None else consumer.in_flight

    def deliveries(self, offset: int) -> Deliveries:
        """The delivery history of a message that is being moved to the dead-letter topic."""
        return self.dispatch.deliveries(offset)

    # Time, position and settings.

    def expire(self, now: float) -> list[Action]:
        """End all leases, takes and delays that are due at this time."""
        if now >= self._alone:
            return self._delete()
        out: list[Action] = []
        while item := self.in_flight.pop_due(now):
            if isinstance(item, Take):
                self.dispatch.end_take(item, out)
            elif item.phase is FLIGHT:
                assert item.holder is not None
                if item.holder.until > now and not item.lapsed:
                    self.in_flight.extend(item, item.holder.until)
                else:
                    failure = expired(item.holder.name, self.config.lease)
                    until = self.dispatch.backoff_end(item, item.deliveries, now)
                    self.dispatch.end_delivery(item, out, failure, until)
            elif item.phase is DELAYED:
                self.in_flight.redeliver(item)
            else:
                self.dispatch.move_to_dead_letters(item, out)
        return self.dispatch.pump(now, out)

    def deadline(self) -> float | None:
        """The time at which expire() has to be called next."""
        when = self.in_flight.deadline()
        return when if self._alone == inf else min(inf if when is None else when, self._alone)

    def seek(self, offset: int, now: float) -> list[Action]:
        """Move to an offset: all messages from it on are delivered, acknowledged or not, and none before it.

        Messages in flight are forgotten, so their consumers may get them twice.
        """
        return self.dispatch.pump(now, self.reposition.seek(offset))

    def redrive(
        self, letters: Iterable[tuple[int, int]], now: float, keys: Mapping[int, int | None] | None = None
    ) -> list[Action]:
        """Deliver messages again whose dead letters are sent back, see `Reposition.redrive`."""
        out = self.reposition.redrive(letters, keys)
        return self.dispatch.pump(now, out) if out else []

    def was_redriven(self, offset: int, epoch: int) -> bool:
        """Whether the dead letter that a message got in this epoch was sent back."""
        return self.reposition.was_redriven(offset, epoch)

    def pause(self) -> list[Action]:
        """Deliver nothing until resume(). Messages in flight stay in flight."""
        return self.configure(msgspec.structs.replace(self.config, paused=True), 0.0)

    def resume(self, now: float) -> list[Action]:
        return self.configure(msgspec.structs.replace(self.config, paused=False), now)

    def configure(self, config: ChannelConfig, now: float) -> list[Action]:
        """Change the settings. They apply to all later deliveries."""
        if config == self.config:
            return []
        if config.exclusive and len(self.consumers) > 1:
            raise ChannelBusy(
                f"the channel {self.name!r} has {len(self.consumers)} consumers, so it can't be exclusive"
            )
        if config.order_by != self.config.order_by:
            self.reposition.reread()
        elif not config.same_choice(self.config):
            self.backlog.reread(self.cursor)
        self.status.config = config
        if not config.delete_on_leave:
            self._alone = inf
        return self.dispatch.pump(now, [Write(Configured(self.name, config))])

    # Suspension while another broker delivers from the channel.

    def suspend(self) -> None:
        """Deliver nothing until unsuspend(). Messages stay in flight unless the other broker reports them as done.

        If they were redelivered, the same consumer could get them twice, because its acknowledgements may be on their
        way.
        """
        self.status.suspended = True

    def unsuspend(self, now: float) -> list[Action]:
        """Deliver again."""
        self.status.suspended = False
        return self.dispatch.pump(now, [])

    def revoke(self, consumer: Who, spans: Iterable[Span]) -> None:
        """Redeliver messages whose acknowledgement was refused, as soon as that is allowed."""
        if (holder := self.consumers.get(consumer)) is None:
            return
        for start, count in spans:
            for run in self.in_flight.pick(start, start + count, FLIGHT, holder)[0]:
                self.dispatch.end_flight(holder, run.end - run.start)
                self.in_flight.redeliver(run)

    def absorb(self, state: ChannelState, now: float) -> list[Action]:
        """Add the progress that another broker made while this channel was suspended."""
        return self.dispatch.pump(now, self._merge.absorb(state))

    def recover(self, state: ChannelState, now: float) -> list[Action]:
        """Restore the progress that another broker has recorded, after it was lost here."""
        return self.dispatch.pump(now, self._merge.recover(state))

    # Inside.

    def figures(self) -> dict[str, Any]:
        status = self.status
        counts = dict.fromkeys(Phase, 0)
        for run in self.in_flight:
            counts[run.phase] += run.end - run.start
        return {
            "floor": self.floor,
            "cursor": self.cursor,
            "lag": status.safe - self.cursor - self.backlog.done_before(status.safe) + sum(counts.values()),
            "in_flight": counts[FLIGHT],
            "waiting": counts[DUE] + counts[DELAYED] + counts[BEHIND],
            "dying": counts[MOVING],
            "redelivered": status.redelivered,
            "dead": status.dead,
            "late": status.late,
            "refused": status.refused,
            "lost": status.lost,
            "consumers": len(self.consumers),
            "takes": sum(len(consumer.takes) for consumer in self.consumers),
            "ranges": len(self.in_flight),
            "full": self.dispatch.full,
            "paused": self.config.paused,
        }

    def _delete(self) -> list[Action]:
        return [Write(Deleted(self.name)), Delete(self.name)]
