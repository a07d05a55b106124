"""What a round of the archive is to cover of each stream, and what of that is gone. No Spark, no bus."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from busway.spark.lake import continuity
from busway.spark.lake.table_log.commits import Covered, File, Snapshot
from busway.spark.ranges import Available, Place, admit

ADVICE: Final = "With fail_on_data_loss=False (--skip-lost) the rest is archived, and how many are lost is noted"
_OTHER: Final = "With the option failOnDataLoss"
"""How the advice of the source begins, which is not for those who archive."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to archive now."""

    covered: tuple[Covered, ...]
    told: tuple[str, ...]
    """What went wrong with streams before, for the log."""
    lost: tuple[str, ...]
    """Of streams that are left out, as messages of them are gone and that is to be an error."""


def plan(
    snapshot: Snapshot, held: Sequence[Available], most: int, *, fail: bool, damaged: Collection[Place] = frozenset()
) -> Plan:
    """At most so many records; a stream that has lost some is left out if that is to fail, and so keeps no other from being archived."""
    begin, jumped, first = dict[Place, int](), dict[Place, int](), dict[Place, int]()
    until: dict[Place, int] = {}
    told, lost = list[str](), list[str]()
    for one in held:
        end = snapshot.end(one.place)
        at = one.first if end is None else end
        jump = continuity.jumped(at, one.first)
        if jump:
            told.append(
                f"the stream {one.stream!r} of the broker {one.broker} began anew at offset {at + jump}, as one in memory does when its broker "
                f"starts again: what it had from offset {at} on, if anything, is not archived"
            )
        if one.first > at + jump:
            gone = _gone(one, at + jump)
            if fail:
                lost.append(f"{gone}. {ADVICE}")
                continue
            told.append(gone)
        begin[one.place], jumped[one.place], first[one.place] = at, jump, max(at + jump, one.first)
        until[one.place] = one.next
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
    return Plan(covered, tuple(told), tuple(lost))


def judged(covered: Sequence[Covered], added: Sequence[File]) -> list[Covered]:
    """Ranges of all topics that may be damaged, with those that are not as whole: streams of which every message was written."""
    lacking: Counter[str] = Counter()
    for one in covered:
        lacking[one.stream] += one.end - one.start
    for file in added:
        lacking[file.stream] -= file.rows
    return [structs.replace(one, damaged=one.damaged and lacking[one.stream] > 0) for one in covered]


def advised(text: str) -> str:
    """What the source says of messages that are gone, with the advice for an archive."""
    said, found, _ = text.partition(_OTHER)
    return said + ADVICE if found else text


def _gone(one: Available, begin: int) -> str:
    return (
        f"{one.first - begin} messages of the stream {one.stream!r} of the broker {one.broker} are gone: the offsets {begin} to {one.first - 1}. "
        "The stream's limits removed them before they were archived, or they ended with their broker"
    )
