"""The audit finds each injected fault and no other, like a plain model of it."""

from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from busway.spark.lake.audit import KINDS, Finding, audit
from tests.support.spark.rows import START, row, table

SECOND = timedelta(seconds=1)


def whole() -> list[dict[str, Any]]:
    return [row(offset, "ab"[offset % 2], offset // 2 + 40_000) for offset in range(50)]


def gaps() -> list[dict[str, Any]]:
    return [row(n, sequence=n) for n in [*range(1, 10), *range(12, 20), *range(200_000, 200_003)]]


def repeats() -> list[dict[str, Any]]:
    rows = [row(offset) for offset in range(10)]
    again = [{**rows[8], "offset": 10}, {**rows[9], "offset": 11}]
    again[1]["fields"] = {"venue": "krk"}
    return rows + [{**one, "stored": rows[9]["stored"]} for one in again]


def made_up() -> list[dict[str, Any]]:
    return [row(offset, sequence=sequence) for offset, sequence in enumerate([1, 2, 2, 4])]


def out_of_order() -> list[dict[str, Any]]:
    rows = [row(offset) for offset in range(9)]
    rows[2]["offset"] = 1
    rows[6]["sequence"], rows[5]["sequence"] = 6, 7
    rows[3]["stored"] = rows[3]["time"] = START - 5 * SECOND
    rows[7]["time"] = rows[7]["stored"] + 2 * SECOND
    rows[8]["time"] = rows[8]["stored"] - 100 * SECOND
    return rows


CASES = {
    whole: [],
    gaps: [("gap", "a", 10, 11, 2), ("gap", "a", 20, 199_999, 199_980)],
    repeats: [("repeat", "a", 9, 10, 2), ("conflict", "a", 10, 10, 1), ("order", "a", 10, 10, 1)],
    made_up: [("gap", "a", 3, 3, 1), ("repeat", "a", 2, 2, 1), ("conflict", "a", 2, 2, 1)],
    out_of_order: [
        ("offset", "", 1, 1, 1),
        ("order", "a", 6, 6, 1),
        ("clock", "", 3, 3, 1, 7.0),
        ("early", "a", 7, 7, 1, 2.0),
        ("late", "a", 8, 8, 1, 100.0),
    ],
}


@pytest.mark.parametrize("block", [3, 1_000_000])
def test_each_fault_is_found_and_nothing_else(spark, block):
    """Each case is a broker of its own, so that all are looked at in one go."""
    rows, wanted = [], []
    for number, (case, found) in enumerate(CASES.items()):
        broker = f"{number:032x}"
        rows += [{**one, "broker": broker} for one in case()]
        wanted += [Finding(kind, broker, "s", *rest) for kind, *rest in found]
    report = audit(table(spark, rows), early="1s", late=99, block=block)
    assert sorted(report.findings, key=repr) == sorted(wanted, key=repr)
    assert [one.kind for one in report.findings] == sorted((one.kind for one in wanted), key=list(KINDS).index)
    assert report.messages == len(rows)
    assert report.topics == len(CASES) + 1
    assert not report.clean
    for kind in KINDS:
        assert report.counts[kind] == sum(one.count for one in wanted if one.kind == kind)


def test_without_faults_it_is_clean_and_so_is_nothing(spark):
    rows = whole()
    rows[3]["time"] -= timedelta(days=300)
    report = audit(table(spark, rows), early=None, late=None)
    assert report.clean
    assert report.findings == ()
    empty = audit(table(spark, []))
    assert (empty.clean, empty.messages, empty.topics) == (True, 0, 0)


def test_only_so_many_findings_are_given_and_all_are_counted(spark):
    report = audit(table(spark, [row(offset, sequence=2 * offset) for offset in range(10)]), most=3)
    assert report.counts["gap"] == 9
    assert [one.first for one in report.findings] == [1, 3, 5]
    assert report.as_dict()["findings"][0]["kind"] == "gap"


def test_a_table_without_a_column_is_refused(spark):
    with pytest.raises(ValueError, match="the column 'stored' is missing"):
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
