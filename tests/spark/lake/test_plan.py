"""The plan of an archive round and of reads: offsets and files by numbers alone, without Spark and without a bus."""

import pytest

from busway.spark.endpoints import lost_text
from busway.spark.lake import continuity
from busway.spark.lake.plan import confirm_damage, plan, with_archive_advice
from busway.spark.lake.table_log.commits import Commit, Covered, File, Snapshot, decode, encode
from busway.spark.ranges import Available, Range
from busway.spark.source import history

AGAIN = 1 << 40


def archived(*ranges: Covered) -> Snapshot:
    snapshot = Snapshot()
    snapshot.apply(Commit(number=1, time=0.0, kind="archive", ranges=ranges))
    return snapshot


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
    added = [File("p", name, "d", rows, 1, (0, 9), (0, 0)) for name, rows in (("s", 4), ("s", 4), ("u", 7))]
    assert [one.damaged for one in confirm_damage(covered, added)] == [False, False, True]


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
    assert decode(encode(Commit(number=2, time=0.0, kind="archive", ranges=(covered,))), Commit, "").ranges == (
        covered,
    )
    snapshot.apply(Commit(number=2, time=0.0, kind="archive", ranges=(covered,)))
    assert snapshot.covered["b", "m"] == Covered("b", "m", 0, AGAIN + 7, lost=3, jumped=AGAIN - 50)
    assert plan(snapshot, [Available("b", "m", AGAIN + 2, AGAIN + 9)], 1000, fail=True).warnings == ()


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
    assert continuity.jumped(end, first) == jump


def test_a_table_goes_on_behind_the_jump() -> None:
    assert history._begin(archived(Covered("b", "m", 0, 50)), Available("b", "m", AGAIN, AGAIN + 7)) == AGAIN
    assert history._begin(archived(Covered("b", "m", 0, 50)), Available("b", "m", 60, 70)) == 50


def test_a_file_is_left_out_only_if_no_broker_may_have_something_in_it() -> None:
    a, b, other = ("a", "s"), ("b", "s"), ("b", "t")
    file = File("p", "s", "d", 1, 1, (10, 20), (0, 0))
    places = frozenset({a, b, other})
    Selected = history.Selected  # noqa: N806
    assert Selected(places=places).may_have(file)
    assert Selected({a: 50, other: 50}, places=places).may_have(file)
    assert Selected({a: 50, b: 20}, places=places).may_have(file)
    assert not Selected({a: 50, b: 21}, places=places).may_have(file)
    assert Selected({}, {a: 5, other: 5}, places=places).may_have(file)
    assert Selected({}, {a: 5, b: 11}, places=places).may_have(file)
    assert not Selected({}, {a: 5, b: 10}, places=places).may_have(file)
    assert not Selected({a: 50}, places=frozenset({a})).may_have(file)
