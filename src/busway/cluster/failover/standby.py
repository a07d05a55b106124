"""Standby: delivers from a lost node's channels using this mirror's replicas, and hands the progress back.

`ownership` decides when it begins and ends.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from busway.broker.channels.state.progress import Entry, rebuild
from busway.cluster.failover.standby_file import StandbyFile, StandbyRecord
from busway.cluster.replication.channel_progress import split
from busway.cluster.replication.copies import Copy
from busway.cluster.replication.messages import Back, Word
from busway.cluster.replication.replica_driver import ReplicaDriver

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Standby:
    """The take-overs of one broker."""

    def __init__(self, hub: "Hub", copying: ReplicaDriver | None, send: Callable[[int, Word], None]) -> None:
        self._hub = hub
        self._copying = copying
        self._send = send
        self.marks = StandbyFile(hub.folder)
        self._begun: dict[str, object] = {}
        """By the nodes for which it hands out: a new one each time."""

    def ready(self, guid: str) -> bool:
        """Whether all that the channels of that node did is known here."""
        return any(copy.fresh for copy in self._copies(guid))

    @property
    def guids(self) -> set[str]:
        return set() if self._copying is None else {guid for guid, _ in self._copying.copies}

    def begin(self, guid: str, nodes: Collection[str]) -> None:
        """Hand out for that node; these count."""
        begun = self._begun[guid] = object()
        fresh = [copy for copy in self._copies(guid) if copy.fresh]
        self.marks.begin(guid, {copy.name: sorted(copy.channels) for copy in fresh}, nodes)
        for copy in fresh:
            copy.journal.look(partial(self._adopt, guid, copy, begun))

    def _adopt(self, guid: str, copy: Copy, begun: object, entries: list[Entry]) -> None:
        if self._begun.get(guid) is begun:  # it is still so
            self._hub.channels.ownership.adopt(guid, copy, copy.journal, rebuild(entries))

    def end(self, guid: str) -> None:
        """Hand out for that node no longer. Who hands out meanwhile isn't known, so nothing here is for sure."""
        self._release(guid)
        self.spoil(guid)

    def spoil(self, guid: str) -> None:
        """What is here may be old: it is not handed out of before its node has told everything anew."""
        for copy in self._copies(guid):
            copy.fresh = False

    def resume(self, guid: str) -> None:
        """Nobody has handed out since this one did, or somebody has said that it is to do so with what it knows."""
        mark = self.marks.get(guid)
        for copy in self._copies(guid):
            if mark.gone or copy.name in mark.channels:
                copy.fresh = True

    def left(self, guid: str) -> dict[str, int]:
        """How many messages of the channels of that node are not done, by stream, as far as that is known here. What is being written now is added when it is."""
        found: dict[str, int] = {}

        def shown(copy: Copy, entries: list[Entry]) -> None:
            floors = [max(state.floor, copy.first) for state in rebuild(entries).values()]
            if floors and (count := copy.safe - min(floors)) > 0:
                found[copy.name] = count

        for copy in self._copies(guid):
            copy.journal.look(partial(shown, copy))
        return found

    def give_back(self, guid: str, conn: int, then: Callable[[], None]) -> None:
        """The node is here again: it hears what became of its channels, before anything else."""
        self._release(guid)
        mark = self.marks.get(guid)
        left = self._copies(guid) if guid in self.marks else []
        self.marks.back(guid)
        if not left:
            then()
            return

        def shown(copy: Copy, entries: list[Entry]) -> None:
            left.remove(copy)
            self._tell(conn, copy, mark, entries, last=not left)
            if not left:
                then()

        for copy in list(left):
            copy.journal.look(partial(shown, copy))

    def given(self, guid: str) -> None:
        """It has noted that."""
        self.marks.remove(guid)

    def _tell(self, conn: int, copy: Copy, mark: StandbyRecord, entries: list[Entry], *, last: bool) -> None:
        before, after = mark.channels.get(copy.name), rebuild(entries)
        copy.channels = set(after)
        made = tuple(name for name in after if before is not None and name not in before)
        # What was removed is said once: the node may have made it anew since.
        gone = tuple(name for name in before or () if name not in after) if mark.last else ()
        parts = list(split(entries))
        for at, part in enumerate(parts):
            end = at == len(parts) - 1
            self._send(conn, Back(copy.name, part, made, gone, more=not end, last=last and end, turn=mark.turn))

    # Inside.

    def _release(self, guid: str) -> None:
        self._begun.pop(guid, None)
        self._hub.channels.ownership.release(guid)

    def _copies(self, guid: str) -> list[Copy]:
        return [] if self._copying is None else self._copying.of(guid)
