"""Looks through the copies that were on a mirror's disk when it started: what a power cut took from them is found now, not when it is needed.

A driver. Opening a log reads its newest bucket only. The rest is read here in the background, one copy after the other, in another
thread; whoever has the copies hears which have holes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from busway.cluster.replication.compare import have
from busway.cluster.replication.copies import Copy
from busway.errors import BusError
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_PORTION: Final = 1 * MiB


class Scrub:
    """The looks of one broker."""

    def __init__(self, hub: "Hub", holed: Callable[[Copy], object]) -> None:
        self._hub = hub
        self._holed = holed
        self._todo: list[Copy] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, copies: Iterable[Copy]) -> None:
        """Look through these."""
        self._todo += copies
        if self._task is None and self._todo:
            self._task = self._hub.loop.create_task(self._work(), name="busway audit")

    async def _work(self) -> None:
        try:
            while self._todo:
                await self._look(self._todo.pop(0))
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, None, "the audit of a copy")
        finally:
            self._task = None

    async def _look(self, copy: Copy) -> None:
        """By portions, so that it can end at any time. What is read and not sound the log itself takes note of."""
        at, end = copy.log.first, copy.log.written
        try:
            while at < end:
                _, following, _ = await self._hub.loop.run_in_executor(None, copy.log.read_written, at, _PORTION)
                if following <= at:
                    break
                at = following
        except BusError as error:
            log.warning("the copy of stream %r can't be looked through: %s", copy.config.name, error.reason)
            return
        copy.tell_damage()
        if have(copy.log).holes:
            self._holed(copy)

    def kill(self) -> None:
        """Look no further."""
        self._todo.clear()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """The same, before the files are closed."""
        if (task := self._task) is not None:
            self.kill()
            await asyncio.wait([task])
