"""Plan of a round of the archive: the offsets to archive for each stream, the lost ones, and whether a stream goes on.

The archive and the source call it. A crash may remove the end of a stream that is not synced, and the broker then gives
its offsets to other messages. The offsets do not show that, so a commit also has the id of its last message.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from busway.spark.endpoints import Endpoints
from busway.spark.lake.coverage import Covered, LakeError, Snapshot
from busway.spark.ranges import Available, Place, Range, admit

ADVICE: Final = (
    "With fail_on_data_loss=False (--skip-lost) the rest is archived, and the commit records how many are lost"
)
_OTHER: Final = "With the option failOnDataLoss"
"""The beginning of the source's advice, which does not apply to an archive."""
_RESTART_BITS: Final = 40
"""A stream in memory continues at a multiple of 2 to this power after a restart, so that no offset is used twice."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The offsets that a round archives, and the problems that it found."""

    covered: tuple[Covered, ...]
    warnings: tuple[str, ...]
    """Problems of the streams, for the log."""
    lost: tuple[str, ...]
    """Errors of the streams that are left out because messages of them are lost."""


def plan(
    snapshot: Snapshot,
    available: Sequence[Available],
    most: int,
    *,
    fail: bool,
    damaged: Collection[Place] = frozenset(),
) -> Plan:
    """Plan at most `most` records. With `fail`, a stream with lost messages is left out of the round."""
    begun: dict[Place, Covered] = {}
    until: dict[Place, int] = {}
    warnings, lost = list[str](), list[str]()
    for info in available:
        end = snapshot.end(info.place)
        at = info.first if end is None else end
        jump = jumped(at, info.first)
        gone = max(info.first - at - jump, 0)
        if jump:
            warnings.append(
                f"the stream {info.stream!r} of the broker {info.broker} began anew at offset {at + jump}, as a stream in memory does when its "
                f"broker restarts: its messages from offset {at} on, if there were any, are not archived"
            )
        if gone:
            text = _lost(info, at + jump)
            if fail:
                lost.append(f"{text}. {ADVICE}")
                continue
            warnings.append(text)
        begun[info.place] = Covered(*info.place, at, at, gone, info.place in damaged, jumped=jump)
        until[info.place] = info.next
    until = admit({place: part.start for place, part in begun.items()}, until, most)
    covered = tuple(structs.replace(begun[place], end=until[place]) for place in sorted(begun))
    return Plan(covered, tuple(warnings), tuple(lost))


def _lost(info: Available, begin: int) -> str:
    return (
        f"{info.first - begin} messages of the stream {info.stream!r} of the broker {info.broker} are lost: the offsets {begin} "
        f"to {info.first - 1}. The limits of the stream removed them before they were archived, or they were in memory when "
        "their broker stopped"
    )


def confirm_damage(covered: Sequence[Covered], rows: Mapping[str, int]) -> list[Covered]:
    """Clear the damage mark of ranges whose messages were all written. Only for archives of all topics."""
    lacking: Counter[str] = Counter()
    for part in covered:
        lacking[part.stream] += part.end - part.start
    lacking.subtract(rows)
    return [structs.replace(part, damaged=part.damaged and lacking[part.stream] > 0) for part in covered]


def with_archive_advice(text: str) -> str:
    """Replace the source's advice in an error about lost messages by the advice for an archive."""
    error, found, _ = text.partition(_OTHER)
    return error + ADVICE if found else text


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


def check_continuity(endpoints: Endpoints, snapshot: Snapshot, available: Sequence[Available]) -> None:
    """Raise LakeError if a stream has lost archived messages at its end."""
    for info in available:
        archived = snapshot.covered.get(info.place)
        if archived is None:
            continue
        finding = ""
        if archived.end > info.next:
            finding = f"ends at offset {info.next}, but is archived up to {archived.end}"
        elif archived.last and archived.end > info.first:
            now = last_id(endpoints, info.place, archived.end)
            if now and now != archived.last:
                finding = f"has the message {now} at offset {archived.end - 1}, but {archived.last} is archived"
        if finding:
            raise LakeError(
                f"the stream {info.stream!r} of the broker {info.broker} {finding}: it has lost its end, and uses these offsets for "
                "other messages now. Archive it into another lake"
            )
