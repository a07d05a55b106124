"""The watch of the disk with the data folder: while its free space is too low, logs on it refuse new messages.

It drives `disk_space`; the server starts and stops it.
"""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway.broker.admin.events import DISK, ClusterEvents
from busway.broker.storage.disk_space import DiskSpace, shown
from busway.broker.streams.table import StreamTable
from busway.common import environment
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.streams.stream import Stream

log = logging.getLogger("busway.broker")

_EVERY: Final = 1.0
"""Seconds between two checks."""


class DiskWatch:
    """The disk watch of one broker. Without a data folder it does nothing."""

    def __init__(self, runtime: "Runtime", folder: Path | None, streams: StreamTable, events: ClusterEvents) -> None:
        self._runtime = runtime
        self._streams = streams
        self._events = events
        self._folder = folder
        self._space = DiskSpace(runtime.settings.min_free_disk)
        self._timer: asyncio.TimerHandle | None = None
        self._unknown = False
        """Whether the free space could not be read the last time."""

    @property
    def low(self) -> bool:
        return self._space.low

    def start(self) -> None:
        if self._folder is not None:
            self._check()
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def added(self, stream: "Stream") -> None:
        """Have a new stream refuse messages, too, if the free space is low."""
        if self._space.low:
            self._refuse([stream])

    def figures(self) -> dict[str, Any] | None:
        """The free space, the floor, whether and how often messages were refused. None without a data folder."""
        return None if self._folder is None else self._space.figures()

    def _schedule(self) -> None:
        self._timer = self._runtime.loop.call_later(_EVERY, self._on_timer)

    def _on_timer(self) -> None:
        self._schedule()
        self._check()

    def _check(self) -> None:
        assert self._folder is not None
        try:
            free, size = environment.disk_space(self._folder)
        except OSError as error:
            if not self._unknown:
                log.warning("the free space of %s can't be read: %s", self._folder, error.strerror or error)
            self._unknown = True
            return
        self._unknown = False
        space, before = self._space, self._space.refusal()
        changed = space.look(free, size)
        if space.refusal() != before:
            self._refuse(list(self._streams.by_name.values()))
        if changed:
            self._report()
            self._runtime.flush()

    def _refuse(self, streams: "list[Stream]") -> None:
        reason = self._space.refusal()
        for stream in streams:
            if stream.on_disk:
                try:
                    stream.log.refuse(reason)
                except BusError as error:  # it is being closed
                    log.debug("stream %r: %s", stream.name, error)

    def _report(self) -> None:
        space = self._space
        figures = {"free": space.free, "floor": space.floor}
        if space.low:
            log.warning(
                "the disk with the data folder %s has %s free, less than the %s that the broker keeps free "
                "(--min-free-disk): durable publishes to its streams are refused until there is more",
                *(self._folder, shown(space.free), shown(space.floor)),
            )
            self._events.tell(f"{DISK}/low", figures, f"{shown(space.free)} free")
        else:
            log.warning(
                "the disk with the data folder %s has %s free again: durable publishes are accepted",
                self._folder,
                shown(space.free),
            )
            self._events.tell(f"{DISK}/enough", figures, f"{shown(space.free)} free")
