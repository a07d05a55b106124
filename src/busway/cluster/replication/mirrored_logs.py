"""The logs of one stream that mirrors copy: its messages, and the progress of its channels.

The primary driver uses both in the same way. They differ in who waits for a mirror: publishers, or consumers that
acknowledge.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from busway._core import Log
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.streams.stream import Stream
from busway.cluster.replication.messages import progress_of

if TYPE_CHECKING:
    from busway.broker.channels.driver import ProgressStore
    from busway.broker.runtime import Runtime


class MirroredLog(Protocol):
    """One log of a stream."""

    name: str
    """The name in the messages between the nodes."""
    stream: Stream

    @property
    def log(self) -> Log: ...

    def confirm(self, upto: int | None) -> None:
        """A mirror has the records below this offset. None: nothing waits for a mirror."""

    def recovered(self, *, whole: bool) -> None:
        """Lost records came back. `whole`: no more will."""

    def rest(self, *, yes: bool) -> None:
        """Accept no records while lost ones may come back, or end that."""


class MirroredMessages:
    """The messages of a stream."""

    def __init__(self, runtime: "Runtime", stream: Stream, commit_soon: Callable[[Stream], None]) -> None:
        self.name = stream.name
        self.stream = stream
        self._runtime = runtime
        self._commit_soon = commit_soon

    @property
    def log(self) -> Log:
        return self.stream.log

    def confirm(self, upto: int | None) -> None:
        self.log.confirm(upto)
        self._commit_soon(self.stream)

    def recovered(self, *, whole: bool) -> None:
        self._runtime.engine.recovered(self.stream.number, self.log.next, whole=whole)

    def rest(self, *, yes: bool) -> None:
        self.stream.wait_for_mirror(yes=yes)
        if not yes:
            self.recovered(whole=True)
        self.log.rest(yes)
        self._commit_soon(self.stream)


class MirroredProgress:
    """The progress of a stream's channels. It rests while the channels are held; see `broker.channels.ownership`."""

    def __init__(self, stream: Stream, progress: ProgressLog) -> None:
        self.name = progress_of(stream.name)
        self.stream = stream
        self._progress = progress

    @property
    def log(self) -> Log:
        return self._progress.native

    def confirm(self, upto: int | None) -> None:
        self._progress.confirm(upto)

    def recovered(self, *, whole: bool) -> None:
        pass

    def rest(self, *, yes: bool) -> None:
        pass


def logs_of(
    runtime: "Runtime", stream: Stream, progress: "ProgressStore | None", commit_soon: Callable[[Stream], None]
) -> list[MirroredLog]:
    """The logs of a stream that mirrors copy. The database of a stream replicates it itself."""
    if stream.config.in_database:
        return []
    logs: list[MirroredLog] = [MirroredMessages(runtime, stream, commit_soon)]
    return [*logs, MirroredProgress(stream, progress)] if isinstance(progress, ProgressLog) else logs
