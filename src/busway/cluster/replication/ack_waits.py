"""Acknowledgements that wait for a mirror: of publishes, and of channels' messages, in streams with safety=mirrored.

Each log of such a stream waits for itself. The primary driver owns it; the rule is `primary.AckWait`.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from busway.broker.streams.stream import Stream
from busway.cluster.replication.messages import progress_of
from busway.cluster.replication.mirrored_logs import MirroredLog
from busway.cluster.replication.primary import AckWait

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")


class AckWaits:
    """The waiting acknowledgements of one broker: `wait` seconds at most.

    `end` returns the end of a log at its mirror, or None; `notice` gets the events `mirrored` and `unmirrored`.
    """

    def __init__(
        self,
        runtime: "Runtime",
        wait: float,
        end: Callable[[str], int | None],
        notice: Callable[[str, dict[str, Any]], object],
    ) -> None:
        self._runtime = runtime
        self._wait = wait
        self._end = end
        self._notice = notice
        self._waits: dict[str, AckWait] = {}
        """By the name of the log."""
        self.streams: dict[str, Stream] = {}
        """The streams with safety=mirrored."""
        self.alone = 0
        """How often a stream stopped waiting for its mirror."""

    def __contains__(self, log: str) -> bool:
        return log in self._waits

    def begin(self, mirrored: MirroredLog, *, expected: bool) -> None:
        """Wait for mirrors from now on. `expected`: a mirror is known from before."""
        self._waits[mirrored.name] = AckWait(self._wait, self._runtime.loop.time(), expected=expected)
        self.streams[mirrored.stream.name] = mirrored.stream
        mirrored.stream.mirrored = expected
        if expected:
            mirrored.confirm(mirrored.log.written)

    def end(self, mirrored: MirroredLog) -> bool:
        """Wait no more: the stream was removed, or has another safety. Returns whether the log has waited."""
        self.streams.pop(mirrored.stream.name, None)
        mirrored.stream.mirrored = None
        return self._waits.pop(mirrored.name, None) is not None

    def look(self, mirrored: MirroredLog) -> None:
        """Confirm what a mirror has, and stop waiting for a mirror that is late."""
        if (wait := self._waits.get(mirrored.name)) is None:
            return
        end = self._end(mirrored.name)
        changed = wait.look(self._runtime.loop.time(), mirrored.log.written, end)
        if wait.active and end is not None:
            mirrored.confirm(end)
        elif changed:
            mirrored.confirm(None)
        if changed:
            self._report(mirrored.stream)
        if wait.deadline() is not None:
            self._runtime.arm()

    def _report(self, stream: Stream) -> None:
        """Report whether acknowledgements of the whole stream wait, if that has changed."""
        waits = [wait for name in (stream.name, progress_of(stream.name)) if (wait := self._waits.get(name))]
        if stream.mirrored is (active := all(wait.active for wait in waits)):
            return
        stream.mirrored = active
        self._notice("mirrored" if active else "unmirrored", {"stream": stream.name})
        if active:
            log.info("stream %r is mirrored: acknowledgements wait for the mirror", stream.name)
        else:
            self.alone += 1
            log.warning(
                "stream %r has waited %g s for its mirror: publishes and progress of channels are acknowledged"
                " without it until it catches up",
                stream.name,
                self._wait,
            )

    def deadline(self) -> float | None:
        return min((at for wait in self._waits.values() if (at := wait.deadline()) is not None), default=None)
