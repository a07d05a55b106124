"""Scrub: reads the replicas on a mirror's disk after its start, to find records that a power cut destroyed.

Opening a log reads its newest bucket only. The scrub reads the other buckets in the background, one replica after the
other, in another thread. It reports replicas with holes to the replica driver, which owns it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from busway.cluster.replication.compare import have
from busway.cluster.replication.copies import Copy
from busway.cluster.replication.messages import called
from busway.errors import BusError
from busway.settings import MiB

if TYPE_CHECKING:
    from busway._core import Log
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

_PORTION: Final = 1 * MiB


class Scrub:
    """The scrub of one broker's replicas."""

    def __init__(self, runtime: "Runtime", holed: Callable[[Copy, str], object]) -> None:
        """`holed` is called with a replica, and with the name of its log that has holes."""
        self._runtime = runtime
        self._holed = holed
        self._queue: list[tuple[Copy, str, Log]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, copies: Iterable[Copy]) -> None:
        """Add replicas to be read."""
        self._queue += [(copy, name, opened) for copy in copies for name, opened in copy.logs()]
        if self._task is None and self._queue:
            self._task = self._runtime.loop.create_task(self._work(), name="busway scrub")

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._read(*self._queue.pop(0))
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._runtime.unexpected(error, None, "the scrub of a replica")
        finally:
            self._task = None

    async def _read(self, copy: Copy, name: str, opened: "Log") -> None:
        """Read a log in portions, so that the scrub can stop at any time. The log records damage itself."""
        position, end = opened.first, opened.written
        try:
            while position < end:
                _, following, _ = await self._runtime.loop.run_in_executor(
                    None, opened.read_written, position, _PORTION
                )
                if following <= position:
                    break
                position = following
        except BusError as error:
            log.warning("can't read the replica of %s completely: %s", called(name), error.reason)
            return
        copy.report_damage()
        if have(opened).holes:
            self._holed(copy, name)

    def kill(self) -> None:
        """Stop at once."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop, and wait until no file is read any more."""
        if (task := self._task) is not None:
            self.kill()
            await asyncio.wait([task])
