"""Whether a stream goes on where the archive of it ends.

A crash may take the end of a stream that is not synced, and its offsets are given to other messages then. By their number alone nobody could
tell; so a commit also notes the id of the last message that it covers.
"""

from collections.abc import Sequence
from typing import Final

from busway.spark.endpoints import Endpoints
from busway.spark.lake.table_log.commits import LakeError, Snapshot
from busway.spark.ranges import Available, Place, Range

_AGAIN: Final = 40
"""A stream in memory goes on with a multiple of 2 to the power of this when its broker starts again: no offset ever means two messages."""


def jumped(end: int, first: int) -> int:
    """How many offsets a stream that has `first` now has passed over behind `end`, because it began anew."""
    return max((first >> _AGAIN << _AGAIN) - end, 0) if first >> _AGAIN > end >> _AGAIN else 0


def last_id(places: Endpoints, place: Place, end: int) -> str:
    """The id of the message before this offset; empty if there is none, or it is gone."""
    part = Range(*place, max(end - 1, 0), end)
    found: list[str] = []
    for batch in places[place[0]].batches(part, "**", ("id",), lambda _: None):
        found += batch.column("id").to_pylist()
    return found[0] if found else ""


def check(places: Endpoints, snapshot: Snapshot, held: Sequence[Available]) -> None:
    """Raise LakeError for a stream that has lost its end."""
    for one in held:
        archived = snapshot.covered.get(one.place)
        if archived is None:
            continue
        if archived.end > one.next:
            raise _lost(one, f"ends at offset {one.next}, but is archived up to {archived.end}")
        if archived.last and archived.end > one.first:
            now = last_id(places, one.place, archived.end)
            if now and now != archived.last:
                raise _lost(one, f"has the message {now} at offset {archived.end - 1}, but {archived.last} is archived")


def _lost(one: Available, how: str) -> LakeError:
    return LakeError(
        f"the stream {one.stream!r} of the broker {one.broker} {how}: it has lost its end, and gives those offsets to other messages now. "
        "Archive it into another lake"
    )
