"""Plan of a round of the archive: computes the offsets to archive for each stream, and the lost ones.

The archive calls it; it does no I/O.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from busway.spark.lake import continuity
from busway.spark.lake.table_log.commits import Covered, File, Snapshot
from busway.spark.ranges import Available, Place, admit

ADVICE: Final = (
    "With fail_on_data_loss=False (--skip-lost) the rest is archived, and the commit records how many are lost"
)
_OTHER: Final = "With the option failOnDataLoss"
"""The beginning of the source's advice, which does not apply to an archive."""


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
    begin, jumped, first = dict[Place, int](), dict[Place, int](), dict[Place, int]()
    until: dict[Place, int] = {}
    warnings, lost = list[str](), list[str]()
    for info in available:
        end = snapshot.end(info.place)
        at = info.first if end is None else end
        jump = continuity.jumped(at, info.first)
        if jump:
            warnings.append(
                f"the stream {info.stream!r} of the broker {info.broker} began anew at offset {at + jump}, as a stream in memory does when its "
                f"broker restarts: its messages from offset {at} on, if there were any, are not archived"
            )
        if info.first > at + jump:
            text = _lost(info, at + jump)
            if fail:
                lost.append(f"{text}. {ADVICE}")
                continue
            warnings.append(text)
        begin[info.place], jumped[info.place], first[info.place] = at, jump, max(at + jump, info.first)
        until[info.place] = info.next
    until = admit(first, until, most)
    covered = tuple(
        Covered(
            *place,
            begin[place],
            until[place],
            first[place] - begin[place] - jumped[place],
            place in damaged,
            jumped=jumped[place],
        )
        for place in sorted(begin)
    )
    return Plan(covered, tuple(warnings), tuple(lost))


def confirm_damage(covered: Sequence[Covered], added: Sequence[File]) -> list[Covered]:
    """Clear the damage mark of ranges whose messages were all written. Only for archives of all topics."""
    lacking: Counter[str] = Counter()
    for part in covered:
        lacking[part.stream] += part.end - part.start
    for file in added:
        lacking[file.stream] -= file.rows
    return [structs.replace(part, damaged=part.damaged and lacking[part.stream] > 0) for part in covered]


def with_archive_advice(text: str) -> str:
    """Replace the source's advice in an error about lost messages by the advice for an archive."""
    error, found, _ = text.partition(_OTHER)
    return error + ADVICE if found else text


def _lost(info: Available, begin: int) -> str:
    return (
        f"{info.first - begin} messages of the stream {info.stream!r} of the broker {info.broker} are lost: the offsets {begin} "
        f"to {info.first - 1}. The limits of the stream removed them before they were archived, or they were in memory when "
        "their broker stopped"
    )
