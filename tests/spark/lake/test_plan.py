"""The plan of an archive round and of reads: offsets and files by numbers alone, without Spark and without a bus."""

import json
from datetime import date

import msgspec
import pytest

from busway.spark.endpoints import lost_text
from busway.spark.lake.coverage import Covered, File, LakeError, Snapshot, decode, differences
from busway.spark.lake.plan import confirm_damage, jumped, plan, with_archive_advice
from busway.spark.ranges import Available, Range

AGAIN = 1 << 40


def archived(*ranges: Covered) -> Snapshot:
    return Snapshot(1, covered={one.place: one for one in ranges})


def test_a_stream_that_has_lost_some_keeps_no_other_from_being_archived() -> None:
    snapshot = archived(Covered("b", "s", 0, 10), Covered("b", "t", 0, 10))
    held = [Available("b", "s", 30, 40), Available("b", "t", 5, 40), Available("b", "new", 7, 9)]
    found = plan(snapshot, held, 1000, fail=True)
    assert found.covered == (Covered("b", "new", 7, 9), Covered("b", "t", 10, 40))
    (text,) = found.lost
    assert text.startswith("20 messages of the stream 's' of the broker b are lost: the offsets 10 to 29.")
    assert "--skip-lost" in text
    assert "failOnDataLoss" not in text
    found = plan(snapshot, held, 1000, fail=False, damaged={("b", "t")})
    assert found.covered[1:] == (Covered("b", "s", 10, 40, lost=20), Covered("b", "t", 10, 40, damaged=True))
    assert found.lost == ()
    assert "20 messages of the stream 's'" in found.warnings[0]
    assert sum(one.end - one.start for one in plan(snapshot, held, 5, fail=False).covered) == 5


def test_only_streams_that_lack_something_are_damaged() -> None:
    covered = [Covered("b", name, 0, 10, lost=2, damaged=name != "t") for name in ("s", "t", "u")]
    assert [one.damaged for one in confirm_damage(covered, {"s": 8, "u": 7})] == [False, False, True]


def test_the_source_has_other_advice() -> None:
    text = with_archive_advice(lost_text(Range("b", "s", 0, 9), 0, 9))
    assert text.startswith("9 messages of the stream 's' of the broker b are lost: the offsets 0 to 8.")
    assert "--skip-lost" in text
    assert "failOnDataLoss" not in text
    assert with_archive_advice("other") == "other"


@pytest.mark.parametrize("fail", [True, False])
def test_a_stream_in_memory_that_began_anew_has_lost_nothing_that_is_known(fail: bool) -> None:
    snapshot = archived(Covered("b", "m", 0, 50, lost=3))
    found = plan(snapshot, [Available("b", "m", AGAIN, AGAIN + 7)], 1000, fail=fail)
    (covered,) = found.covered
    assert covered == Covered("b", "m", 50, AGAIN + 7, jumped=AGAIN - 50)
    assert covered.start == AGAIN
    assert found.lost == ()
    assert "began anew at offset 1099511627776" in found.warnings[0]
    state = snapshot.state("id", ("**",), (covered,), {"m": 7}, {})
    assert state.covered == (Covered("b", "m", 0, AGAIN + 7, lost=3, jumped=AGAIN - 50),)
    later = archived(*state.covered)
    assert plan(later, [Available("b", "m", AGAIN + 2, AGAIN + 9)], 1000, fail=True).warnings == ()


def test_what_it_has_lost_since_then_counts() -> None:
    snapshot, held = archived(Covered("b", "m", 0, 50)), [Available("b", "m", AGAIN + 4, AGAIN + 7)]
    assert "4 messages of the stream 'm'" in plan(snapshot, held, 1000, fail=True).lost[0]
    (covered,) = plan(snapshot, held, 1000, fail=False).covered
    assert (covered.lost, covered.jumped, covered.start) == (4, AGAIN - 50, AGAIN + 4)


@pytest.mark.parametrize(
    ("end", "first", "jump"),
    [(0, 0, 0), (5, 9, 0), (9, 5, 0), (5, AGAIN, AGAIN - 5), (AGAIN + 5, 3 * AGAIN + 1, 2 * AGAIN - 5), (AGAIN, AGAIN + 5, 0)],
)  # fmt: skip
def test_how_far_a_stream_jumped(end: int, first: int, jump: int) -> None:
    assert jumped(end, first) == jump


def test_a_range_that_does_not_continue_the_archive_is_refused() -> None:
    with pytest.raises(LakeError, match="'s' ends at offset 10, so it can't go on at 12"):
        archived(Covered("b", "s", 0, 10)).state("id", (), (Covered("b", "s", 12, 20),), {}, {})


def test_the_metadata_of_a_commit_survives_json() -> None:
    state = archived(Covered("b", "s", 0, 10, lost=1)).state("id", ("a/**",), (), {"s": 9}, {"s": ("Order",)}, 5.0)
    assert decode(json.loads(msgspec.json.encode(state)), "x") == state
    for damaged, text in (
        ({"version": 9}, "version 9"),
        ({"version": 1}, "damaged metadata"),
        ("x", "damaged metadata"),
    ):
        with pytest.raises(LakeError, match=text):
            decode(damaged, "x")


def test_rows_that_others_changed_are_named_by_stream() -> None:
    found = differences("L", {"s": 10, "t": 5, "u": 1}, {"s": 7, "t": 6, "u": 1}, ["version 7 (DELETE)"])
    assert [text.partition(":")[0] for text in found] == [
        "the lake L lacks 3 messages of the stream 's'",
        "the lake L has 1 rows too many of the stream 't'",
    ]
    assert "version 7 (DELETE)" in found[0]


@pytest.mark.parametrize(
    ("offsets", "begin", "end", "may"),
    [((10, 20), 0, 10, False), ((10, 20), 0, 11, True), ((10, 20), 20, 30, True), ((10, 20), 21, 30, False), (None, 0, 1, True)],
)  # fmt: skip
def test_a_file_is_left_out_by_its_offsets(offsets: tuple[int, int] | None, begin: int, end: int, may: bool) -> None:
    assert File("p", "s", date(2026, 1, 31), 1, 1, offsets).may_have(begin, end) is may
