"""A channel that somebody else hands out for a while: it rests, and hears what was done meanwhile.

A part of the machine in `channels`. Two that hand out of one channel would give a message to two consumers; so whoever is not sure to be the
only one rests, and whoever goes on first takes in what the other has done.
"""

from collections.abc import Iterable
from itertools import chain
from math import inf

from busway.broker.channels.state.actions import Action, Write
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.dispatch import Dispatch
from busway.broker.channels.state.in_flight import FLIGHT, InFlight
from busway.broker.channels.state.progress import ChannelState, Created, Delivered, Done, Lost, Redriven, Sought, Span


class Suspension(Dispatch):
    """Rests, and goes on."""

    def rest(self) -> None:
        """Hand nothing out until wake(). Who has something still has it then, unless the other hears that it is done.

        It would be given to the same consumer twice if it was for all again: the acknowledgement of the first copy may be on its way.
        """
        self.resting = True

    def take_back(self, consumer: Who, spans: Iterable[Span]) -> None:
        """It has these no longer, and hears that it can't say anything of them: they are handed out again, when that may be."""
        if (holder := self._consumers.get(consumer)) is None:
            return
        for start, count in spans:
            for run in self._held.pick(start, start + count, FLIGHT, holder)[0]:
                self._landed(holder, run.end - run.start)
                self._held.again(run)

    def wake(self, now: float) -> list[Action]:
        """Hand out again."""
        self.resting = False
        return self._pump(now, [])

    def absorb(self, state: ChannelState, now: float) -> list[Action]:
        """What became of the channel elsewhere, on top of what it is here. While it rests."""
        if state.epoch < self._epoch:
            return []  # it went to another place since, which the other did not hear of
        out: list[Action] = []
        past = self._ahead.past
        if state.epoch > self._epoch:
            self._begin_anew()
            self._epoch = state.epoch
            past.move(state.epoch, state.begin)
            self._ahead.again(state.begin)
            self._noted = state.begin
            out.append(Write(Sought(self.name, state.epoch, state.begin)))
        cut = (self._held.cut_out(start, end) for start, end, _ in state.done)
        for run in chain(self._held.cut_below(state.floor), *cut):
            if run.holder is not None:
                self._landed(run.holder, run.end - run.start)
        cursor = max(self.cursor, state.floor)
        self._ahead.again(cursor)
        past.raise_floor(cursor)
        for start, end, _ in state.done:
            if end > cursor:
                past.done.put(max(start, cursor), end)
        for start, end, count in state.deliveries:
            if end > cursor:
                past.deliveries.put(max(start, cursor), end, count)
            self._held.delivered(start, end, count)
        for start, end, epoch in state.redriven:
            past.sent_back(epoch, [(start, end - start)])
        out += (Write(one) for one in state.entries() if isinstance(one, Done | Delivered))
        out += (Write(one) for one in past.entries() if isinstance(one, Redriven))
        if state.lost or self.lost:
            self.lost, self._told = max(self.lost, state.lost), max(self._told, state.told)
            out.append(Write(Lost(self.name, state.epoch, state.floor, self.lost, self._told)))
        out.append(Write(Done(self.name, state.epoch, state.floor)))
        return self._pump(now, out)

    def unite(self, state: ChannelState, now: float) -> list[Action]:
        """Another channel was made elsewhere under the same name: they are one, which begins where the earlier of both does and is done with what either is done with.

        Their epochs are those of two clocks, and tell nothing. While it rests.
        """
        state, past = state.copy(), self._ahead.past
        state.done.put(state.begin, state.floor)
        begin = max(state.begin, self._first)
        if begin < past.begin:
            self._put_done(state, past.begin)
            for run in self._held:
                if run.deliveries > 1:
                    state.deliveries.put(run.start, run.end, run.deliveries)
            for start, end, times in past.deliveries:
                state.deliveries.put(max(start, self.cursor), end, times)
            state.epoch, state.begin = self._epoch + 1, begin
        else:
            state.epoch, state.begin = self._epoch, past.begin
        state.floor = state.begin
        return self.absorb(state, now)

    def recover(self, state: ChannelState, now: float) -> list[Action]:
        """What was known of the channel was lost, and so it was made anew; it is where the other knows it to be. What was done since is done. While it rests."""
        if self.moved:
            return []  # somebody wants it to be there
        past = self._ahead.past
        if state.epoch != self._epoch:
            state = state.copy()
            self._put_done(state, past.begin)
            self._begin_anew()
            self._epoch = state.epoch
            past.move(state.epoch, state.begin)
            self._ahead.again(state.begin)
            self._noted = state.begin
            made = Created(self.name, state.epoch, state.begin, self.config)
            return [Write(made), *self.absorb(state, now)]
        return self.absorb(state, now)

    def _put_done(self, state: ChannelState, begin: int, end: float = inf) -> None:
        """Add to a state what is done here from one offset to another: what lies between the held ones, and what was done ahead."""
        cursor = int(min(self.cursor, end))
        for run in self._held:
            state.done.put(begin, run.start)
            begin = run.end
        state.done.put(begin, cursor)
        for start, upto, _ in self._ahead.past.done:
            state.done.put(max(start, cursor), int(min(upto, end)))

    def _begin_anew(self) -> None:
        """Nothing is held, and nobody has anything."""
        self._held = held = InFlight()
        for one in self._consumers:
            one.in_flight = 0
            self._consumers.rate(one)
            for take in one.takes:
                if take.alarm != inf:
                    held.wake(take)
