"""Merges the progress that another broker made while this channel was suspended, before it is resumed."""

from itertools import chain

from busway.broker.channels.state.actions import Action, Write
from busway.broker.channels.state.backlog import Backlog
from busway.broker.channels.state.dispatch import Dispatch
from busway.broker.channels.state.in_flight import InFlight
from busway.broker.channels.state.progress import ChannelState, Created, Delivered, Done, Lost, Redriven, Sought
from busway.broker.channels.state.reposition import Reposition
from busway.broker.channels.state.status import Status


class Merge:
    """Merges progress into one channel. Each method is called while the channel is suspended."""

    def __init__(
        self, status: Status, in_flight: InFlight, backlog: Backlog, dispatch: Dispatch, reposition: Reposition
    ) -> None:
        self._status = status
        self._in_flight = in_flight
        self._backlog = backlog
        self._dispatch = dispatch
        self._reposition = reposition

    def absorb(self, state: ChannelState) -> list[Action]:
        """Add the progress of the same channel at another broker."""
        status, held, past = self._status, self._in_flight, self._backlog.past
        if state.epoch < status.epoch:
            return []  # the channel was moved here, and the other broker did not know that
        out: list[Action] = []
        if state.epoch > status.epoch:
            self._reposition.move(state.epoch, state.begin)
            out.append(Write(Sought(status.name, state.epoch, state.begin)))
        cut = (held.cut_out(start, end) for start, end, _ in state.done)
        for run in chain(held.cut_below(state.floor), *cut):
            if run.holder is not None:
                self._dispatch.end_flight(run.holder, run.end - run.start)
        cursor = max(self._backlog.cursor, state.floor)
        self._backlog.reread(cursor)
        past.raise_floor(cursor)
        for start, end, _ in state.done:
            if end > cursor:
                past.done.put(max(start, cursor), end)
        for start, end, count in state.deliveries:
            if end > cursor:
                past.deliveries.put(max(start, cursor), end, count)
            held.delivered(start, end, count)
        for start, end, epoch in state.redriven:
            past.sent_back(epoch, [(start, end - start)])
        out += (Write(entry) for entry in state.entries() if isinstance(entry, Done | Delivered))
        out += (Write(entry) for entry in past.entries() if isinstance(entry, Redriven))
        if state.lost or status.lost:
            status.lost = max(status.lost, state.lost)
            status.lost_reported = max(status.lost_reported, state.told)
            out.append(Write(Lost(status.name, state.epoch, state.floor, status.lost, status.lost_reported)))
        out.append(Write(Done(status.name, state.epoch, state.floor)))
        return out

    def recover(self, state: ChannelState) -> list[Action]:
        """Restore the progress that the other broker has recorded, after the channel was lost here and created anew.

        Messages that were done here since then stay done.
        """
        status, past = self._status, self._backlog.past
        if status.moved:
            return []  # a consumer or operator chose its position
        if state.epoch == status.epoch:
            return self.absorb(state)
        state = state.copy()
        self._reposition.add_done(state, past.begin)
        self._reposition.move(state.epoch, state.begin)
        made = Created(status.name, state.epoch, state.begin, status.config)
        return [Write(made), *self.absorb(state)]
