"""The rules for when an acknowledgement of a channel's message waits for the mirrors. Without a clock.

A mirror that is promoted must know all acknowledged messages. So an acknowledgement is confirmed once every eligible
mirror has written it. A mirror is eligible from its first full snapshot on, until it announces that it stops, or does
not answer for `wait` seconds: then acknowledgements go on with one copy. `channel_progress` calls this module.
"""

import asyncio
from collections.abc import Callable
from itertools import takewhile

from busway.errors import BusError


class _Waiting:
    """One acknowledgement that waits for mirrors."""

    __slots__ = ("future", "left", "since")

    def __init__(self, future: "asyncio.Future[None]", left: set[str], since: float) -> None:
        self.future = future
        self.left = left
        self.since = since


class ProgressState:
    """The waiting acknowledgements of one stream: mirrors by guid, entries by ascending serial."""

    def __init__(self, wait: float) -> None:
        self.wait = wait
        """Seconds to wait for a mirror that does not answer."""
        self._mirrors: dict[str, float | None] = {}
        """The eligible mirrors, and since when each is not linked; None: it is linked."""
        self._waiting: dict[int, _Waiting] = {}
        self.alone = 0
        """How often acknowledgements stopped waiting for a mirror."""

    @property
    def mirrors(self) -> frozenset[str]:
        return frozenset(self._mirrors)

    def note(
        self, serial: int, now: float, future: "Callable[[], asyncio.Future[None]]"
    ) -> "asyncio.Future[None] | None":
        """An entry was recorded. Returns the future to wait for; None: there is no eligible mirror."""
        if not self._mirrors:
            return None
        entry = self._waiting[serial] = _Waiting(future(), set(self._mirrors), now)
        return entry.future

    def heard(self, mirror: str, serial: int, *, all_: bool = False) -> None:
        """A mirror has written all entries up to this serial. `all_`: including a snapshot, so it is eligible."""
        if all_:
            self._mirrors[mirror] = None
        for number in list(takewhile(lambda number: number <= serial, self._waiting)):
            self._without(number, mirror)

    def lost(self, mirror: str, now: float, *, ends: bool) -> None:
        """The link to a mirror has ended. `ends`: the mirror announced that it stops."""
        if ends:
            self._drop(mirror)
        elif mirror in self._mirrors:
            self._mirrors[mirror] = now

    def refuse(self, error: BusError) -> None:
        """Another node delivers now, so refuse all acknowledgements that wait."""
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            if not entry.future.done():
                entry.future.set_exception(error)

    def release(self) -> None:
        """Confirm all acknowledgements that wait."""
        for mirror in list(self._mirrors):
            self._drop(mirror)

    def expire(self, now: float) -> None:
        """Stop waiting for mirrors that have not answered in time."""
        lost = [guid for guid, since in self._mirrors.items() if since is not None and self._over(since, now)]
        for mirror in lost:
            self.alone += 1
            self._drop(mirror)
        late = {mirror for entry in self._waiting.values() if self._over(entry.since, now) for mirror in entry.left}
        for mirror in late:
            self.alone += 1
            self._drop(mirror)

    def deadline(self) -> float | None:
        starts = [since for since in self._mirrors.values() if since is not None]
        starts += [entry.since for entry in self._waiting.values()][:1]
        return min(starts) + self.wait if starts else None

    def _over(self, since: float, now: float) -> bool:
        """Compare with the same sum as deadline(). A difference could be off by one bit, and the timer would loop."""
        return now >= since + self.wait

    def _drop(self, mirror: str) -> None:
        self._mirrors.pop(mirror, None)
        for number in list(self._waiting):
            self._without(number, mirror)

    def _without(self, number: int, mirror: str) -> None:
        entry = self._waiting[number]
        entry.left.discard(mirror)
        if not entry.left:
            del self._waiting[number]
            if not entry.future.done():
                entry.future.set_result(None)
