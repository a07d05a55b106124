"""Cleanup of uncommitted files: deletes files whose messages exist elsewhere, and sets aside possible only copies.

The archive and compaction call it. A file of `data` with a higher number than the last commit belongs to a killed
round, or its commit is lost, and the file may have the only copy of messages that the streams have removed. The offsets
in the file decide between the two cases.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from busway.spark.lake.table_log.commits import File, LakeError, Snapshot
from busway.spark.lake.table_log.folder import ASIDE, Lake
from busway.spark.ranges import Available, Place

log = logging.getLogger("busway.spark")


class Left(NamedTuple):
    """A file of `data` that no commit names."""

    path: str
    spare: bool
    """All that it has is elsewhere, too."""


def left(lake: Lake, snapshot: Snapshot, held: Sequence[Available] = ()) -> list[Left]:
    """What killed rounds have left, judged by the lake and by what streams hold."""
    there = lake.files()
    behind = [path for path in sorted(there) if (number := lake.round(path)) is not None and number > snapshot.number]
    lacking = {file.stream for file in snapshot.files.values() if file.path not in there} if behind else set()
    out = []
    for path in behind:
        try:
            file, brokers = lake.measured(path)
        except (LakeError, OSError, ValueError) as error:
            log.warning("%s", error)
            out.append(Left(path, spare=False))
            continue
        out.append(Left(path, _spare(file, brokers, snapshot, held, whole=file.stream not in lacking)))
    return out


def _spare(file: File, brokers: tuple[str, str], snapshot: Snapshot, held: Sequence[Available], *, whole: bool) -> bool:
    live = {one.place: one for one in held if one.stream == file.stream}
    ends = {place: one.end for place, one in snapshot.covered.items() if place[1] == file.stream and whole}
    places: set[Place] = {place for place in {*live, *ends} if brokers[0] <= place[0] <= brokers[1]}
    if not {(broker, file.stream) for broker in brokers} <= places:
        places = {*live, *ends}  # rows of a broker by way of another one, which are counted as that one's
    return bool(places) and all(_elsewhere(file, ends.get(place, 0), live.get(place)) for place in places)


def _elsewhere(file: File, end: int, live: Available | None) -> bool:
    """In the lake already, which has everything before `end`; or still in the stream."""
    if file.offsets[1] < end:
        return True
    return live is not None and live.first <= max(file.offsets[0], end) and file.offsets[1] < live.next


def tidy(lake: Lake, found: Sequence[Left]) -> None:
    """Delete or set aside what was found."""
    for one in found:
        if one.spare:
            log.info("%s is left from a round that did not end, and is removed", one.path)
            lake.delete(one.path)
            continue
        lake.set_aside(one.path)
        log.warning(
            "%s of the lake %s is named by no commit, but may be the only copy of its messages: it is in %s/ now. If %s was lost, bring both back",
            *(one.path, lake.name, ASIDE, lake.missing_commit(one.path)),
        )
