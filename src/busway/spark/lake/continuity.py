"""Continuity of archive and stream: checks that a stream still has the messages that the archive ends with.

The archive and the source call it. A crash may remove the end of a stream that is not synced, and the broker then gives
its offsets to other messages. The offsets do not show that, so a commit also has the id of its last message.
"""

from collections.abc import Sequence
from typing import Final

from busway.spark.endpoints import Endpoints
from busway.spark.lake.table_log.commits import LakeError, Snapshot
from busway.spark.ranges import Available, Place, Range

_RESTART_BITS: Final = 40
"""A stream in memory continues at a multiple of 2 to this power after a restart, so that no offset is used twice."""


def jumped(end: int, first: int) -> int:
    """Return the number of offsets that a stream skipped behind `end` at a restart. `first`: its first offset now."""
    return (
        max((first >> _RESTART_BITS << _RESTART_BITS) - end, 0) if first >> _RESTART_BITS > end >> _RESTART_BITS else 0
    )


def last_id(endpoints: Endpoints, place: Place, end: int) -> str:
    """Return the id of the message before this offset. Empty if there is no such message, or it is lost."""
    part = Range(*place, max(end - 1, 0), end)
    found: list[str] = []
    for batch in endpoints[place[0]].batches(part, "**", ("id",), lambda _: None):
        found += batch.column("id").to_pylist()
    return found[0] if found else ""


def check(endpoints: Endpoints, snapshot: Snapshot, available: Sequence[Available]) -> None:
    """Raise LakeError if a stream has lost archived messages at its end."""
    for info in available:
        archived = snapshot.covered.get(info.place)
        if archived is None:
            continue
        if archived.end > info.next:
            raise _lost(info, f"ends at offset {info.next}, but is archived up to {archived.end}")
        if archived.last and archived.end > info.first:
            now = last_id(endpoints, info.place, archived.end)
            if now and now != archived.last:
                raise _lost(
                    info, f"has the message {now} at offset {archived.end - 1}, but {archived.last} is archived"
                )


def _lost(info: Available, finding: str) -> LakeError:
    return LakeError(
        f"the stream {info.stream!r} of the broker {info.broker} {finding}: it has lost its end, and uses these offsets for "
        "other messages now. Archive it into another lake"
    )
