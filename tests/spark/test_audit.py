"""What an audit finds: each fault that was put in, nothing else, and the same as a plain model of it."""

from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busway.spark.lake.audit import KINDS, Finding, audit
from tests.spark.rows import START, row, table

SECOND = timedelta(seconds=1)
B = "0" * 32


def found(spark: SparkSession, rows: list[dict[str, Any]], **options: Any) -> list[Finding]:
    report = audit(table(spark, rows), **options)
    assert report.messages == len(rows)
    assert report.clean == (not report.findings)
    for kind in KINDS:
        assert report.counts[kind] == sum(one.count for one in report.findings if one.kind == kind)
    return list(report.findings)


def test_whole_topics_are_clean_also_when_their_beginnings_are_gone(spark):
    first = [row(offset, "ab"[offset % 2], offset // 2 + 40_000) for offset in range(50)]
    second = [row(offset, "a", broker="1" * 32) for offset in range(5)]
    assert found(spark, first + second) == []
    assert audit(table(spark, first + second)).topics == 3
    assert audit(table(spark, [])).clean


def test_gaps_inside_a_bucket_and_over_whole_ones_are_found_with_their_ranges(spark):
    rows = [row(n, sequence=n) for n in [*range(1, 10), *range(12, 20), *range(200_000, 200_003)]]
    assert found(spark, rows) == [
        Finding("gap", B, "s", "a", 10, 11, 2),
        Finding("gap", B, "s", "a", 20, 199_999, 199_980),
    ]


def test_repeats_are_found_and_told_from_messages_that_differ(spark):
    rows = [row(offset) for offset in range(10)]
    again = [row(offset + 10, sequence=9 + offset, payload=b"%d" % (8 + offset)) for offset in range(2)]
    again = [{**one, "id": rows[one["sequence"] - 1]["id"]} for one in again]
    again[1]["fields"] = {"venue": "krk"}
    wrong = found(spark, rows + again)
    assert wrong == [
        Finding("repeat", B, "s", "a", 9, 10, 2),
        Finding("conflict", B, "s", "a", 10, 10, 1),
        Finding("order", B, "s", "a", 10, 10, 1),
    ]


def test_a_gap_that_a_repeat_makes_up_for_is_found(spark):
    rows = [row(offset, sequence=sequence) for offset, sequence in enumerate([1, 2, 2, 4])]
    assert {one.kind for one in found(spark, rows)} == {"gap", "repeat", "conflict"}


@pytest.mark.parametrize("block", [3, 1_000_000])
def test_order_offsets_and_times_are_looked_at(spark, block):
    rows = [row(offset) for offset in range(9)]
    rows[2]["offset"] = 1
    rows[6]["sequence"], rows[5]["sequence"] = 6, 7
    rows[3]["stored"] = START - 5 * SECOND
    rows[7]["time"] = rows[7]["stored"] + 2 * SECOND
    rows[8]["time"] = rows[8]["stored"] - 100 * SECOND
    rows[3]["time"] = rows[3]["stored"]
    wrong = found(spark, rows, early=SECOND, late=99 * SECOND, block=block)
    assert wrong == [
        Finding("offset", B, "s", "", 1, 1, 1),
        Finding("order", B, "s", "a", 6, 6, 1),
        Finding("clock", B, "s", "", 3, 3, 1, 7.0),
        Finding("early", B, "s", "a", 7, 7, 1, 2.0),
        Finding("late", B, "s", "a", 8, 8, 1, 100.0),
    ]
    if block == 3:
        assert not any(one.kind in {"early", "late"} for one in found(spark, rows, early=None, late=None))


def test_only_so_many_findings_are_given_and_all_are_counted(spark):
    report = audit(table(spark, [row(offset, sequence=2 * offset) for offset in range(10)]), most=3)
    assert report.counts["gap"] == 9
    assert [one.first for one in report.findings] == [1, 3, 5]
    assert report.as_dict()["findings"][0]["kind"] == "gap"


def test_a_table_without_a_column_is_refused(spark):
    with pytest.raises(ValueError, match="needs the column 'stored'"):
        audit(table(spark, [row(0)]).drop("stored"))


def model(rows: list[dict[str, Any]], early: timedelta, late: timedelta) -> Counter[str]:
    counts: Counter[str] = Counter()
    topics = defaultdict(list)
    ordered = sorted(rows, key=lambda one: (one["offset"], one["sequence"], one["stored"]))
    for one in ordered:
        topics[one["topic"]].append(one)
        counts["early"] += one["time"] - one["stored"] > early
        counts["late"] += one["stored"] - one["time"] > late
    for a, b in pairwise(ordered):
        counts["offset"] += a["offset"] == b["offset"]
        counts["clock"] += a["stored"] > b["stored"]
    for some in topics.values():
        numbers = [one["sequence"] for one in some]
        counts["gap"] += max(numbers) - min(numbers) + 1 - len(set(numbers))
        counts["repeat"] += len(numbers) - len(set(numbers))
        different = Counter(number for number, _ in {(one["sequence"], one["payload"]) for one in some})
        counts["conflict"] += sum(count > 1 for count in different.values())
        counts["order"] += sum(a > b for a, b in pairwise(numbers))
    return +counts


@pytest.mark.parametrize("seed", range(2))
def test_a_hundred_damaged_streams_agree_with_a_model(spark, seed):
    """Each is one of a broker of its own, so that all are looked at in one go."""
    random = Random(seed)
    brokers = {f"{number:032x}": _damaged(random, f"{number:032x}") for number in range(100)}
    rows = [one for some in brokers.values() for one in some]
    report = audit(table(spark, rows), early=SECOND, late=3 * SECOND, block=random.choice([2, 5, 1000]), most=100_000)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in report.findings:
        counts[one.broker][one.kind] += one.count
    for broker, some in brokers.items():
        assert counts[broker] == model(some, SECOND, 3 * SECOND), some
    assert report.counts == dict.fromkeys(KINDS, 0) | sum(counts.values(), Counter())


def _damaged(random: Random, broker: str) -> list[dict[str, Any]]:
    last: Counter[str] = Counter({"a": random.choice([0, 32_760, 65_530])})
    rows = []
    for offset in range(random.randrange(1, 30)):
        topic = random.choice("ab")
        last[topic] += 1
        rows.append(row(offset, topic, last[topic], broker=broker, id=""))
    for _ in range(random.randrange(4)):
        one = random.choice(rows)
        match random.randrange(7):
            case 0 if len(rows) > 1:
                rows.remove(one)
            case 1:
                rows.append(dict(one))
            case 2:
                one["sequence"] += random.randrange(1, 5)
            case 3:
                one["offset"] = max(one["offset"] - random.randrange(1, 5), 0)
            case 4:
                one["stored"] -= random.randrange(10) * SECOND
            case 5:
                one["time"] += random.randrange(-5, 5) * SECOND
            case 6:
                rows.append({**one, "payload": b"other"})
    random.shuffle(rows)
    return rows
