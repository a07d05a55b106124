"""When an acknowledgement of a channel's message waits for the mirrors of its stream. A machine, without a clock.

A mirror that hands out for its node must know all that was acknowledged. So an acknowledgement is answered when every mirror that may do so has
written it: each that has heard everything so far, until it is known that it does not take over any more. A mirror that was lost may do so for
a time; one that has said that it stops does not.

That time is longer than a node without the others hands out, so that what waits is refused before it would be answered; and longer than a
mirror without its node believes to know everything. Either may notice only after a while that it is cut off.
"""

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from busway.cluster.failover.lease import SILENCE
from busway.errors import BusError

_NOTICED: Final = SILENCE + 1
"""Seconds in which one that is cut off has noticed that."""


class _Waits:
    __slots__ = ("left", "since", "told")

    def __init__(self, told: "asyncio.Future[None]", left: set[str], since: float) -> None:
        self.told = told
        self.left = left
        self.since = since


class ProgressState:
    """The acknowledgements of one stream. Mirrors are known by their guids, what they were told by serials, which grow."""

    def __init__(self, patience: float) -> None:
        self.wait = _NOTICED + 2 * patience
        """Seconds that a mirror of which nothing is heard is waited for."""
        self._mirrors: dict[str, float | None] = {}
        """Those that may take over; since when one is not here."""
        self._waiting: dict[int, _Waits] = {}
        self.alone = 0
        """How often it went on without a mirror."""

    @property
    def mirrors(self) -> frozenset[str]:
        return frozenset(self._mirrors)

    def note(
        self, serial: int, now: float, future: "Callable[[], asyncio.Future[None]]"
    ) -> "asyncio.Future[None] | None":
        """Something was noted; what to wait for. None: nobody has to hear of it."""
        if not self._mirrors:
            return None
        waits = self._waiting[serial] = _Waits(future(), set(self._mirrors), now)
        return waits.told

    def heard(self, mirror: str, serial: int, *, all_: bool = False) -> None:
        """A mirror has written everything up to this; `all_`: this was all there is, so it may take over from now on."""
        if all_:
            self._mirrors[mirror] = None
        for number in list(takewhile(lambda number: number <= serial, self._waiting)):
            self._without(number, mirror)

    def lost(self, mirror: str, now: float, *, ends: bool) -> None:
        """A mirror is not linked any more; `ends`: it has said so itself."""
        if ends:
            self._drop(mirror)
        elif mirror in self._mirrors:
            self._mirrors[mirror] = now

    def refuse(self, error: BusError) -> None:
        """Somebody else hands out now: nothing of what waits can be answered."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.told.done():
                one.told.set_exception(error)

    def release(self) -> None:
        """Nobody waits any more."""
        for mirror in list(self._mirrors):
            self._drop(mirror)

    def expire(self, now: float) -> None:
        """Wait no longer for those that were not heard for so long."""
        gone = [one for one, since in self._mirrors.items() if since is not None and self._over(since, now)]
        for mirror in gone:
            self.alone += 1
            self._drop(mirror)
        late = {mirror for one in self._waiting.values() if self._over(one.since, now) for mirror in one.left}
        for mirror in late:
            self.alone += 1
            self._drop(mirror)

    def deadline(self) -> float | None:
        since = [one for one in self._mirrors.values() if one is not None]
        since += [one.since for one in self._waiting.values()][:1]
        return min(since) + self.wait if since else None

    def _over(self, since: float, now: float) -> bool:
        """By the same sum as deadline(), or the last bit of a difference would have it called again and again."""
        return now >= since + self.wait

    def _drop(self, mirror: str) -> None:
        self._mirrors.pop(mirror, None)
        for number in list(self._waiting):
            self._without(number, mirror)

    def _without(self, number: int, mirror: str) -> None:
        one = self._waiting[number]
        one.left.discard(mirror)
        if not one.left:
            del self._waiting[number]
            if not one.told.done():
                one.told.set_result(None)
