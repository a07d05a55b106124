"""Moves a channel to another position: by a seek or a redrive, or because the stream lost its end in a crash."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

from busway.broker.channels.state.actions import Action, NotIdle, Rewound, SeekFailed, Write
from busway.broker.channels.state.backlog import Backlog
from busway.broker.channels.state.consumers import Consumers
from busway.broker.channels.state.dispatch import Dispatch
from busway.broker.channels.state.in_flight import FLIGHT, MOVING, InFlight
from busway.broker.channels.state.progress import ChannelState, Redriven, Sought
from busway.broker.channels.state.status import Status
from busway.common.intervals import Intervals
from busway.errors import Code, LimitExceeded

REDRIVEN: Final = 100_000
"""The most separate runs of redriven messages that a channel records, and that it may hold while it redrives."""


class Reposition:
    """The parts of one channel that change when it moves."""

    def __init__(
        self, status: Status, consumers: Consumers, in_flight: InFlight, backlog: Backlog, dispatch: Dispatch
    ) -> None:
        self._status = status
        self._consumers = consumers
        self._in_flight = in_flight
        self._backlog = backlog
        self._dispatch = dispatch

    def seek(self, offset: int) -> list[Action]:
        """Move to an offset: all messages from it on are delivered, acknowledged or not, and none before it."""
        status = self._status
        if not status.first <= offset <= status.safe:
            raise SeekFailed(f"offset {offset} is not in the stream, which has {status.first} to {status.safe}")
        status.moved = True
        self.move(status.epoch + 1, offset)
        return [Write(Sought(status.name, status.epoch, offset))]

    def move(self, epoch: int, offset: int) -> None:
        """Forget all held messages, and begin at an offset in another epoch."""
        self.begin_anew()
        self._status.epoch = epoch
        self._backlog.past.move(epoch, offset)
        self._backlog.reread(offset)
        self._status.recorded = offset

    def begin_anew(self) -> None:
        """Forget all held messages. Takes continue to wait."""
        held = self._in_flight
        held.clear()
        for consumer in self._consumers:
            consumer.in_flight = 0
            self._consumers.rate(consumer)
            for take in consumer.takes:
                if take.alarm != inf:
                    held.wake(take)

    def rewind(self, end: int) -> list[Action]:
        """Move back to the end of a stream that has lost its end. Other messages will get the offsets behind it."""
        status, past, held = self._status, self._backlog.past, self._in_flight
        if (last := past.last) <= end:
            return []
        cursor = min(self._backlog.cursor, end)
        state = ChannelState(
            status.name,
            status.config,
            status.epoch + 1,
            min(self._dispatch.floor, end),
            redriven=past.redriven.copy(),
            lost=status.lost,
            told=status.lost_reported,
        )
        self.add_done(state, state.floor, end)
        for run in held:
            if status.counts(run.deliveries):
                state.deliveries.put(run.start, run.end, run.deliveries)
        old, counts = list(past.done), list(past.deliveries)
        status.epoch = state.epoch
        past.move(status.epoch, cursor)
        for start, upto, _ in old:
            past.done.put(max(start, cursor), min(upto, end))
        for start, upto, count in counts:
            past.deliveries.put(max(start, cursor), min(upto, end), count)
            state.deliveries.put(max(start, cursor), min(upto, end), count)
        past.raise_floor(past.done.beyond(cursor))
        state.raise_floor(state.done.beyond(state.floor))
        past.begin = state.begin = status.recorded = state.floor
        self._backlog.reread(past.floor)
        return [Rewound(last, end), *map(Write, state.entries())]

    def redrive(self, letters: Iterable[tuple[int, int]], keys: Mapping[int, int | None] | None = None) -> list[Action]:
        """Deliver messages again whose dead letters are sent back. A letter is an offset and the epoch of its creation.

        With `order_by` the caller gives the keys of the messages, too. A letter that was sent back before is skipped,
        so no message is delivered twice. A message that is not done is delivered anyway.
        """
        status, past, held, cursor = self._status, self._backlog.past, self._in_flight, self._backlog.cursor
        sent = Intervals()
        for offset, epoch in letters:
            if status.first <= offset < status.safe and not self.was_redriven(offset, epoch):
                sent.put(offset, offset + 1)
        for run in held:
            if run.phase is MOVING:  # it becomes another letter, which can be sent back later
                sent.put(run.start, run.end, 0)
        if not sent:
            return []
        undone = sent.copy()
        for run in held:
            undone.put(run.start, run.end, 0)
        if len(held) + len(undone) > REDRIVEN or len(past.redriven) > REDRIVEN:
            raise LimitExceeded(
                f"channel {status.name!r} has too many separate messages to deliver; redrive more when some are done",
                code=Code.TOO_MANY_PENDING,
            )
        for start, end in ((start, min(end, cursor)) for start, end, _ in undone):
            if keys is not None:
                for offset in range(start, end):
                    held.put_back(offset, offset + 1, keys[offset])
            elif start < end:
                held.put_back(start, end)
        status.epoch += 1
        spans = tuple((start, end - start) for start, end, _ in sent)
        ahead = [(max(start, cursor), end) for start, end, _ in undone if end > cursor]
        past.redrive(status.epoch, [(start, end - start) for start, end in ahead])
        past.begin = min(past.begin, spans[0][0])
        past.sent_back(status.epoch, spans)
        if ahead:
            self._backlog.reread(cursor)
        status.recorded = min(status.recorded, self._dispatch.floor)
        return [Write(Redriven(status.name, status.epoch, spans))]

    def was_redriven(self, offset: int, epoch: int) -> bool:
        """Whether the dead letter that a message got in this epoch was sent back."""
        return next(self._backlog.past.redriven.pieces(offset, offset + 1))[2] > epoch

    def reread(self) -> None:
        """Forget all held messages, and read them again from the stream with the keys of a changed `order_by`."""
        status, past, held = self._status, self._backlog.past, self._in_flight
        busy = sum(run.end - run.start for run in held if run.phase in {FLIGHT, MOVING})
        if busy:
            raise NotIdle(
                f"the channel {status.name!r} has {busy} messages in flight, so order_by can't be changed: "
                "stop its consumers first, or create another channel"
            )
        floor = begin = past.floor = self._dispatch.floor
        for run in held:
            past.done.put(begin, run.start)
            past.deliveries.put(run.start, run.end, run.deliveries)
            begin = run.end
        past.done.put(begin, self._backlog.cursor)
        self.begin_anew()
        self._backlog.reread(floor)

    def add_done(self, state: ChannelState, begin: int, end: float = inf) -> None:
        """Add to a state the messages between two offsets that are done here.

        These are all messages between held ones, and those ahead of the cursor that were done before.
        """
        cursor = int(min(self._backlog.cursor, end))
        for run in self._in_flight:
            state.done.put(begin, run.start)
            begin = run.end
        state.done.put(begin, cursor)
        for start, upto, _ in self._backlog.past.done:
            state.done.put(max(start, cursor), int(min(upto, end)))
