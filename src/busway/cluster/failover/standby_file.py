"""The file in which a mirror records a take-over, beside the replicas of the lost node; it survives a restart.

The file exists from the begin of a take-over until the node has its progress back. It has the channels before the
take-over, the quorum, and whether this mirror was the last node to deliver. `standby` and `ownership` use it.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed
from busway.cluster.replication.copies import FOLDER, found
from busway.common import environment

log = logging.getLogger("busway.cluster")

FILE: Final = ".stood-in"


class StandbyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record about one node."""

    channels: dict[str, list[str]] = {}
    """Those of each stream that is handed out of, as they were when the node was heard last."""
    last: bool = False
    """This one handed out, and has not given that back since."""
    nodes: list[str] = []
    """Those that counted when it began, or since; but for those that have said that they stop."""
    gone: bool = False
    """Somebody has said that the node never comes again."""
    turn: int = 0
    """When it began last, in microseconds: never the same twice."""


class StandbyFile:
    """The records of one broker, by guid of the lost node. Without a folder there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._marks: dict[str, StandbyRecord] = {}
        for guid in [] if folder is None else found(folder):
            if (mark := self._read(guid)) is not None:
                self._marks[guid] = mark

    def __contains__(self, guid: str) -> bool:
        return guid in self._marks

    def __iter__(self) -> Iterator[str]:
        return iter(self._marks)

    def get(self, guid: str) -> StandbyRecord:
        return self._marks.get(guid, StandbyRecord())

    @property
    def last(self) -> list[str]:
        """The nodes for which this one was the last to hand out, as far as it knows."""
        return [guid for guid, mark in self._marks.items() if mark.last]

    @property
    def nodes(self) -> set[str]:
        """Who counted when that was judged."""
        return {node for guid in self.last for node in self._marks[guid].nodes}

    def begin(self, guid: str, channels: dict[str, list[str]], nodes: Iterable[str]) -> None:
        """This one hands out now. What was not given back since an earlier time counts on."""
        mark = self.get(guid)
        count = {*nodes, *(mark.nodes if mark.last else ())}
        turn = max(environment.time_ns() // 1000, mark.turn + 1)
        self._put(
            guid, StandbyRecord(channels | mark.channels, last=True, nodes=sorted(count), gone=mark.gone, turn=turn)
        )

    def counts(self, nodes: Iterable[str]) -> None:
        """These count now, too."""
        more = set(nodes)
        for guid in self.last:
            self._count(guid, more.union(self._marks[guid].nodes))

    def left(self, node: str) -> None:
        """That one has said that it stops."""
        for guid in self.last:
            self._count(guid, {*self._marks[guid].nodes} - {node})

    def _count(self, guid: str, nodes: Iterable[str]) -> None:
        self._put(guid, msgspec.structs.replace(self._marks[guid], nodes=sorted(nodes)))

    def declare(self, guid: str) -> None:
        """The node never comes again, says somebody."""
        self._put(guid, msgspec.structs.replace(self.get(guid), gone=True))

    def back(self, guid: str) -> None:
        """The node is here: from now on it may hand out itself."""
        if guid in self._marks:
            self._put(guid, msgspec.structs.replace(self._marks[guid], last=False, gone=False))

    def remove(self, guid: str) -> None:
        """It has heard everything."""
        if self._marks.pop(guid, None) is not None and (file := self._file(guid)) is not None:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                self._complain(file, error)

    def _file(self, guid: str) -> Path | None:
        return None if self._folder is None else self._folder / FOLDER / guid / FILE

    def _read(self, guid: str) -> StandbyRecord | None:
        if (file := self._file(guid)) is None or not file.exists():
            return None
        try:
            content = file.read_bytes()
            return (
                unsealed(content, StandbyRecord) if content else StandbyRecord()
            )  # an earlier version noted nothing there
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("can't read %s: %s; channels created during the take-over are not handed back", file, error)
            return StandbyRecord()

    def _put(self, guid: str, mark: StandbyRecord) -> None:
        if mark == self._marks.get(guid):
            return
        self._marks[guid] = mark
        if (file := self._file(guid)) is not None:
            try:
                replace(file, sealed(mark))
            except OSError as error:
                self._complain(file, error)

    def _complain(self, file: Path, error: OSError) -> None:
        log.warning("can't write %s: %s; the node may redeliver acknowledged messages", file, error.strerror)
