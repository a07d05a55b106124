"""The held messages of a channel: in flight, due for redelivery, delayed, or moving to the dead-letter topic.

This is a machine without a clock, used by `state.channel`. Held messages are in runs of consecutive offsets with the
same state, sorted by offset; a run is split when only a part of it changes. Every message below the end of the last run
that is in no run is done. In a channel with `order_by`, messages with the same key form a line: only the first one is
delivered, and the others are behind it until it is done. Each of them is its own run.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import inf

from busway.broker.channels.dead_letters.failures import Failure
from busway.broker.channels.state.consumers import Consumer, Take


class Phase(Enum):
    """The state of a run."""

    FLIGHT = 1
    """In flight at its holder until its lease ends."""
    DUE = 2
    """Due for redelivery as soon as a consumer has room."""
    DELAYED = 3
    """Delayed until a time, by a backoff or a negative acknowledgement."""
    MOVING = 4
    """Being moved to the dead-letter topic."""
    BEHIND = 5
    """Behind another message with the same key."""


FLIGHT, DUE, DELAYED, MOVING, BEHIND = Phase


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive messages with the same state."""

    start: int
    end: int
    phase: Phase
    holder: Consumer | None
    deliveries: int
    until: float
    """The time at which the lease or the delay ends."""
    alarm: float = inf
    """The time of the run's valid entry among the alarms."""
    over: bool = False
    failure: Failure | None = None
    """Why the last delivery failed."""
    first: float = 0.0
    """The time of the first delivery, as far as it is known."""
    last: float = 0.0
    """The time of the last delivery."""
    lapsed: bool = False
    """Whether renewals of the holder do not extend the lease."""
    key: int | None = None
    """The key of the run's line."""


class InFlight:
    """All runs of a channel, with the redeliveries and the alarms."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._starts: list[int] = []
        self._runs: list[Run] = []
        # Sorted by the start that a run had when it was queued. The order stays valid if its first messages are done.
        self._redeliveries: list[tuple[int, int, Run]] = []
        self._alarms: list[tuple[float, int, Run | Take]] = []
        self._serial = 0
        self._lines: dict[int, deque[Run]] = {}
        """The lines by key, each in order. Runs that are over are removed when they come to the front."""
        self._tidy = 256
        """The number of alarms at which invalid ones are removed."""
        self.due = 0
        """The number of messages that are due for redelivery."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def first(self) -> int | None:
        """The lowest held offset."""
        return self._starts[0] if self._starts else None

    def add(
        self,
        start: int,
        end: int,
        phase: Phase,
        holder: Consumer | None,
        deliveries: int,
        until: float,
        key: int | None = None,
    ) -> Run:
        """Add a run after all others. With a key it is one message, and BEHIND or MOVING if the key has a line."""
        assert not self._runs or self._runs[-1].end <= start
        run = Run(start, end, phase, holder, deliveries, until, key=key)
        if key is not None:
            assert end - start == 1
            self._lines.setdefault(key, deque()).append(run)
        self._starts.append(start)
        self._runs.append(run)
        if until != inf:
            self.wake(run)
        return run

    def put_back(self, start: int, end: int, key: int | None = None) -> None:
        """Add messages that were done, to be delivered as if for the first time. None of them may be held.

        With a key it is one message. It comes after the first one of its line, which may be in flight, and before later
        ones.
        """
        index = bisect_left(self._starts, start)
        run = Run(start, end, DUE, None, 0, inf, key=key)
        self._starts.insert(index, start)
        self._runs.insert(index, run)
        if key is not None and (line := self._lines.setdefault(key, deque())):
            run.phase = BEHIND
            line.insert(bisect_left(line, start, lo=1, key=lambda run: run.start), run)
            return
        if key is not None:
            self._lines[key].append(run)
        self.due += end - start
        self._queue(run)

    def has_line(self, key: int) -> bool:
        """Whether a message with this key is held, so that the next one has to be behind it."""
        return key in self._lines

    # Selection.

    def pick(self, start: int, end: int, phase: Phase, holder: Consumer | None) -> tuple[list[Run], int]:
        """The runs of this phase and holder, split at both ends of the range, and how many others are in flight."""
        index = self._index(start)
        picked: list[Run] = []
        others = 0
        while index < len(self._starts) and self._starts[index] < end:
            run = self._runs[index]
            if run.phase is phase and run.holder is holder:
                if run.start < start:
                    run = self._split(index, start)
                    index += 1
                if run.end > end:
                    self._split(index, end)
                picked.append(run)
            elif run.phase is FLIGHT:
                others += min(run.end, end) - max(run.start, start)
            index += 1
        return picked, others

    def finish(
        self, start: int, end: int, holder: Consumer | None, pieces: list[tuple[int, int]]
    ) -> tuple[int, int, int]:
        """Remove messages that the holder has in flight or that wait after a delivery, and add them to `pieces`.

        Returns how many of each were removed, and how many are in flight at other consumers.
        """
        starts, runs = self._starts, self._runs
        index = self._index(start)
        freed = waited = others = 0
        while index < len(starts) and starts[index] < end:
            run = runs[index]
            low, high = max(run.start, start), min(run.end, end)
            if run.phase is FLIGHT:
                if run.holder is not holder or holder is None:
                    others += high - low
                    index += 1
                    continue
                freed += high - low
            elif run.phase is MOVING or not run.deliveries:
                index += 1
                continue
            else:
                waited += high - low
                if run.phase is DUE:
                    self.due -= high - low
            pieces.append((low, high))
            if low > run.start:
                if high < run.end:
                    self._split(index, high)
                run.end = low
                index += 1
            elif high < run.end:
                run.start = starts[index] = high
                break
            else:
                self._end(run)
                last = index + 1
                # Remove following runs of the same kind together, so that many small ones cost one deletion.
                while last < len(starts) and runs[last].end <= end:
                    run = runs[last]
                    if run.phase is not FLIGHT or run.holder is not holder or holder is None:
                        break
                    freed += run.end - run.start
                    pieces.append((run.start, run.end))
                    self._end(run)
                    last += 1
                del starts[index:last], runs[index:last]
        return freed, waited, others

    def remove(self, run: Run) -> None:
        index = bisect_left(self._starts, run.start)
        assert self._runs[index] is run
        del self._starts[index], self._runs[index]
        self._gone(run)

    def cut_below(self, offset: int) -> list[Run]:
        """Remove everything below an offset."""
        last = bisect_left(self._starts, offset)
        if last and self._runs[last - 1].end > offset:
            self._split(last - 1, offset)
        gone = self._runs[:last]
        del self._starts[:last], self._runs[:last]
        for run in gone:
            self._gone(run)
        return gone

    def cut_out(self, start: int, end: int) -> list[Run]:
        """Remove everything in [start, end), in any phase."""
        index = self._index(start)
        if index < len(self._starts) and self._starts[index] < start:
            self._split(index, start)
            index += 1
        last = bisect_left(self._starts, end)
        if last > index and self._runs[last - 1].end > end:
            self._split(last - 1, end)
        gone = self._runs[index:last]
        del self._starts[index:last], self._runs[index:last]
        for run in gone:
            self._gone(run)
        return gone

    def delivered(self, start: int, end: int, times: int) -> None:
        """Raise the number of deliveries of everything in [start, end) to at least `times`."""
        index = self._index(start)
        while index < len(self._starts) and self._starts[index] < end:
            run = self._runs[index]
            if run.start < start:
                run = self._split(index, start)
                index += 1
            if run.end > end:
                self._split(index, end)
            run.deliveries = max(run.deliveries, times)
            index += 1

    def around(self, offset: int, floor: int, cursor: int) -> tuple[int, int]:
        """The range of done offsets around an offset that is done."""
        index = bisect_right(self._starts, offset)
        return (
            self._runs[index - 1].end if index else floor,
            self._starts[index] if index < len(self._starts) else cursor,
        )

    # Changes of phase.

    def redeliver(self, run: Run) -> None:
        """Redeliver a run as soon as possible."""
        run.phase, run.holder, run.until, run.alarm, run.lapsed = DUE, None, inf, inf, False
        self.due += run.end - run.start
        self._queue(run)

    def delay(self, run: Run, until: float) -> None:
        run.phase, run.holder, run.until, run.lapsed = DELAYED, None, until, False
        self.wake(run)

    def extend(self, run: Run, until: float) -> None:
        """Extend the lease of a run."""
        run.until = until
        if until != inf:
            self.wake(run)

    def move(self, run: Run, until: float = inf) -> None:
        run.phase, run.holder, run.until, run.alarm = MOVING, None, until, inf
        if until != inf:
            self.wake(run)

    def next_due(self, most: int) -> Run:
        """The lowest due run, split if it is longer than `most`. The caller changes its phase."""
        while (run := heapq.heappop(self._redeliveries)[2]).over:
            pass
        if run.end - run.start > most:
            self._split(bisect_left(self._starts, run.start), run.start + most)
        self.due -= run.end - run.start
        return run

    # Alarms.

    def wake(self, item: Run | Take) -> None:
        item.alarm = item.until
        self._serial += 1
        heapq.heappush(self._alarms, (item.alarm, self._serial, item))
        # Most runs are done long before their time: without this, long leases would keep them all in memory.
        if len(self._alarms) > self._tidy:
            self._alarms = [entry for entry in self._alarms if entry[0] == entry[2].alarm and not entry[2].over]
            heapq.heapify(self._alarms)
            self._tidy = 256 + 4 * len(self._alarms)

    def pop_due(self, now: float) -> Run | Take | None:
        """Remove and return the next run or take whose time has come."""
        while (when := self.deadline()) is not None and when <= now:
            _, _, item = heapq.heappop(self._alarms)
            item.alarm = inf
            if item.until <= now:
                return item
            if item.until != inf:
                self.wake(item)  # its time was extended
        return None

    def deadline(self) -> float | None:
        """The time at which pop_due() returns the next item."""
        while self._alarms and (self._alarms[0][2].over or self._alarms[0][0] != self._alarms[0][2].alarm):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def _index(self, offset: int) -> int:
        """The index of the first run that ends behind an offset."""
        index = bisect_right(self._starts, offset)
        return index - 1 if index and self._runs[index - 1].end > offset else index

    def _split(self, index: int, at: int) -> Run:
        """Split a run in two. Returns the second one."""
        run = self._runs[index]
        rest = Run(at, run.end, run.phase, run.holder, run.deliveries, run.until, lapsed=run.lapsed)
        rest.failure, rest.first, rest.last = run.failure, run.first, run.last
        run.end = at
        self._starts.insert(index + 1, at)
        self._runs.insert(index + 1, rest)
        if rest.phase is DUE:
            self._queue(rest)
        elif rest.until != inf:
            self.wake(rest)
        return rest

    def _queue(self, run: Run) -> None:
        self._serial += 1
        heapq.heappush(self._redeliveries, (run.start, self._serial, run))
        if len(self._redeliveries) > 256 + 4 * len(self._runs):
            self._redeliveries = [entry for entry in self._redeliveries if not entry[2].over]
            heapq.heapify(self._redeliveries)

    def _gone(self, run: Run) -> None:
        if run.phase is DUE:
            self.due -= run.end - run.start
        self._end(run)

    def _end(self, run: Run) -> None:
        """End a run, and make the next one of its line due."""
        run.over = True
        if run.key is None:
            return
        line = self._lines[run.key]
        while line and line[0].over:
            line.popleft()
        if not line:
            del self._lines[run.key]
        elif line[0].phase is BEHIND:
            self.redeliver(line[0])
