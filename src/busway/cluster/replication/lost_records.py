"""Logs that may have lost records, from the start of a node until a mirror has answered.

A suspended log accepts no records, since lost ones may come back in their place. The channels of a stream are held
until both of its logs were compared with the mirror's. The primary driver owns this part.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from busway.cluster.node import Node
from busway.cluster.replication.ack_waits import AckWaits
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import called, progress_of, stream_of
from busway.cluster.replication.mirrored_logs import MirroredLog
from busway.cluster.replication.primary import Primary, Sending

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime
    from busway.broker.streams.stream import Stream

log = logging.getLogger("busway.cluster")

RETRY: Final = 5.0
"""Seconds until a node tries again to write restored records."""


class LostRecords:
    """The suspended logs of one broker. They wait `wait` seconds for a mirror.

    `primaries` are the links to mirrors. `removed` returns when a channel of a stream was removed, or 0.
    """

    def __init__(
        self,
        runtime: "Runtime",
        channels: "Callable[[], Channels]",
        primaries: Mapping[int, Primary],
        ack_waits: AckWaits,
        known: KnownMirrors,
        wait: float,
        removed: Callable[[str, str], int],
    ) -> None:
        self._runtime = runtime
        self._channels = channels
        self._primaries = primaries
        self._ack_waits = ack_waits
        self._known = known
        self._wait = wait
        self._removed = removed
        self._logs: dict[str, MirroredLog] = {}
        """The suspended logs."""
        self._until: dict[str, float] = {}
        """When each stops waiting."""

    def __contains__(self, log: str) -> bool:
        return log in self._logs

    def await_mirror(self, mirrored: MirroredLog) -> None:
        """Suspend a log that existed before this start until its mirror has reported its records."""
        if self._known.guids and mirrored.stream.config.store == "disk":
            self._suspend(mirrored)
        self._hold_channels(mirrored.stream)

    def look(self, mirrored: MirroredLog, sending: Sending, node: Node) -> None:
        """Suspend a log while lost records may come back from this mirror, and resume it when they are here.

        With safety=mirrored it stays suspended until the mirror has all records. Otherwise a repeated publish would be
        acknowledged before the mirror has it.
        """
        name = mirrored.name
        behind = name in self._ack_waits and name in self._logs and sending.have < sending.log.written
        if sending.restores or (sending.open and behind):
            self._suspend(mirrored)
            self._hold_channels(mirrored.stream)
        elif name in self._logs and node.guid in self._known.guids:
            self._report(mirrored, sending, node)
            self.resume(name, node)
        else:
            self._hold_channels(mirrored.stream)

    def _suspend(self, mirrored: MirroredLog) -> None:
        if mirrored.name not in self._logs:
            self._logs[mirrored.name] = mirrored
            mirrored.rest(yes=True)
        self._until[mirrored.name] = self._runtime.loop.time() + self._wait
        self._runtime.arm()

    def resume(self, name: str, node: Node | None = None) -> None:
        """Accept records again. `node`: the mirror that has answered."""
        if (mirrored := self._logs.pop(name, None)) is not None:
            del self._until[name]
            self._hold_channels(mirrored.stream, node)
            mirrored.rest(yes=False)

    def forget(self, name: str) -> None:
        """The stream was removed."""
        if self._logs.pop(name, None) is not None:
            del self._until[name]

    def _hold_channels(self, stream: "Stream", node: Node | None = None) -> None:
        """Hold the channels of a stream until both logs were compared with those of a mirror."""
        ownership = self._channels().ownership
        if any(self._unheard(name) for name in (stream.name, progress_of(stream.name))):
            ownership.hold(stream)
        elif count := ownership.unhold(stream, self._removed):
            stream.lost.clear()
            text = "stream %r: restored the progress of %d channels from %s"
            log.warning(text, stream.name, count, node or "a mirror")

    def _unheard(self, name: str) -> bool:
        found = [sending for primary in self._primaries.values() if (sending := primary.logs.get(name)) is not None]
        compared = any(sending.open for sending in found) and not any(sending.restores for sending in found)
        return name in self._logs and not compared

    def _report(self, mirrored: MirroredLog, sending: Sending, node: Node) -> None:
        """Log which lost records were restored, and which were not."""
        what, repair = called(mirrored.name), sending.repair
        unit = "messages" if mirrored.name == mirrored.stream.name else "records"
        if repair.count:
            log.warning("%s: restored %d lost %s from its mirror", what, repair.count, unit)
        if repair.left:
            log.error("%s: %d %s are lost; its mirror does not have them either", what, repair.left, unit)
        if count := sending.restored_count:
            text = "%s: its end was lost: restored %d %s from offset %d on from %s"
            log.warning(text, what, count, unit, sending.offered, node)
            sending.restored_count = 0
            mirrored.stream.lost.clear()

    # Time.

    def deadline(self) -> float | None:
        return min(self._until.values(), default=None)

    def expire(self, now: float) -> list[str]:
        """Resume logs whose mirror did not answer in time. Returns the names of their streams."""
        late = []
        for name in [name for name, until in self._until.items() if now >= until]:
            if self._stalls(name):
                self._until[name] = now + RETRY
            else:
                late.append(stream_of(name))
                self.resume(name)
        return sorted(set(late))

    def _stalls(self, name: str) -> bool:
        """Whether restored records can't be written. The disk would refuse new ones too."""
        found = [primary.logs.get(name) for primary in self._primaries.values()]
        return any(sending.stalled or sending.fully_restored for sending in found if sending is not None)
