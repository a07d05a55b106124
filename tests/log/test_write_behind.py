"""The front of a stream in a database, against a model: no record is safe before it is stored, and failed ones vanish."""

import select
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from busway._core import Log, block_part, block_records, encode_records
from busway.errors import DataFailed
from tests.support.stored import Model, last_sequences, read_all, row, stored
from tests.support.strength import examples


def front(**given: object) -> Log:
    start: dict = {"name": "s", "next": 0, "stored": 0, "sequences": {}, "sent": [], "waiting": [], **given}
    return Log.front(**start)


def rung(log: Log) -> bool:
    return bool(select.select([log.fileno()], [], [], 0)[0])


def test_nothing_is_safe_before_it_is_stored() -> None:
    log = front()
    assert not rung(log)
    assert log.append([row("a", b"1"), row("b", b"2")], 5) == [(0, 1), (1, 1)]
    assert log.unstored(1000) is None, "not flushed"
    log.flush()
    assert rung(log)
    log.clear_signal()
    first, end, block = log.unstored(1000) or (0, 0, b"")
    assert (first, end, [one.payload for one in stored(block)]) == (0, 2, [b"1", b"2"])
    assert log.unstored(1000) is None
    assert (log.safe, read_all(log)) == (0, [])
    log.stored(2)
    assert (log.safe, len(read_all(log))) == (2, 2)
    assert not rung(log)


def test_it_goes_on_from_what_is_kept() -> None:
    log = front(next=100, stored=50, sequences={"a": 7}, sent=[(9, 1, 90, 3, 5), (9, 6, 97, 6, 2)])
    assert (log.first, log.safe, log.next) == (100, 100, 100)
    assert log.append([row("a", session=9, number=3)], 1) == [(92, 5)]
    assert log.append([row("a", session=9, number=7)], 1) == [(98, 7)]
    assert log.append([row("a", session=9, number=8), row("b")], 1) == [(100, 8), (101, 1)]
    log.flush()
    _, _, block = log.unstored(1000) or (0, 0, b"")
    assert [one[2] for one in block_records(block)] == [50, 50], "time does not go back"


def test_what_failed_never_was() -> None:
    log = front()
    log.append([row("a", b"0", session=1, number=1)], 1)
    log.flush()
    assert log.unstored(1000)
    log.append([row("a", b"1", session=1, number=2)], 1)
    log.flush()
    log.append([row("b", b"2", session=1, number=3)], 1)
    log.fail("no database")
    with pytest.raises(DataFailed, match="no database"):
        log.append([row("a")], 1)
    assert log.remove_unwritten() == (0, 3, "no database")
    assert (log.next, log.safe, log.unstored(1000), last_sequences(log)) == (0, 0, None, {})


def test_only_what_was_not_taken_fails() -> None:
    log = front()
    for payload in (b"0", b"1"):
        log.append([row("a", payload)], 1)
        log.flush()
        if payload == b"0":
            assert log.unstored(1000)
    log.fail("in doubt", taken=False)
    assert log.remove_unwritten() == (1, 2, "in doubt")
    assert (log.next, last_sequences(log)) == (1, {"a": 1})
    log.stored(1)
    assert [one.payload for one in read_all(log)] == [b"0"]


def test_too_much_waits() -> None:
    log = front(pending_bytes=1000)
    taken = log.append([row("a", b"x" * 100)] * 20, 1)
    assert 0 < len(taken) < 20
    log.flush()
    assert log.append([row("a", b"x" * 100)], 1) == []
    _, end, _ = log.unstored(10_000) or (0, 0, b"")
    log.stored(end)
    assert len(log.append([row("a", b"x" * 100)], 1)) == 1


def test_the_last_stay_in_memory_and_no_more() -> None:
    log = front(keep_bytes=1 << 20)
    for n in range(400):
        log.append([row("a", b"x" * 10_000, session=1, number=n)], n)
        log.flush()
        _, end, _ = log.unstored(1 << 20) or (0, 0, b"")
        log.stored(end)
    assert log.safe == 400
    assert 250 < log.first < 320
    assert [one.offset for one in read_all(log)] == list(range(log.first, 400))
    size, *_ = log.usage
    assert size < 2 << 20
    # Of those that left it is still known that they were sent; only their sequence isn't.
    assert log.append([row("a", session=1, number=5), row("a", session=1, number=399)], 500) == [(5, 0), (399, 400)]


dues = st.sampled_from([0, 0, 100, 200, 300])
sizes = st.tuples(st.sampled_from("abc"), st.integers(0, 400_000), st.integers(0, 2), st.integers(1, 30), dues)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(sizes, min_size=1, max_size=5)),
    st.tuples(st.just("take"), st.integers(1, 2_000_000)),
    st.tuples(st.just("release"), st.none()),
    st.tuples(st.sampled_from(["store", "store", "fail", "fail rest"]), st.none()),
)


T = TypeVar("T")


def taken_again(work: Callable[[], T]) -> T:
    """Append, when it is tried again."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        try:
            return work()
        except DataFailed as error:
            assert "gone" in error.reason
    raise AssertionError("it is not tried again")


@given(st.lists(steps, max_size=40))
@settings(max_examples=examples(40))
def test_against_a_model(story: list) -> None:
    """Bucket after bucket, with failures anywhere: it is what is stored, and what waits behind that."""
    log = front(keep_bytes=1 << 30, pending_bytes=1 << 30)
    model = Model()
    taken = safe = failures = 0
    for what, argument in story:
        if what == "append":
            given_ = [row(topic, b"x" * size, session=who, number=n, due=due) for topic, size, who, n, due in argument]
            expected = [model.append(one, 1) for one in given_]
            assert taken_again(partial(log.append, given_, 1)) == expected
            log.flush()
        elif what == "release":
            for key in [key for key, (_, offset) in model.waiting.items() if offset < safe][:1]:
                _, _, block = log.read(model.waiting[key][1], 1)
                assert taken_again(partial(log.release, block, 1)) == 1
                model.release(key, 1)
                log.flush()
        elif what == "take":
            if taken == safe:
                found = log.unstored(argument)
                assert (found is None) == (taken == len(model.records))
                if found is not None:
                    first, taken, block = found
                    assert (first, stored(block)) == (safe, model.records[safe:taken])
        elif what == "store":
            log.stored(taken)
            safe = taken
        elif failures < 2:  # each takes a while
            begin = safe if what == "fail" else taken
            log.fail("gone", taken=what == "fail")
            lost = log.remove_unwritten()
            assert lost == ((begin, len(model.records), "gone") if begin < len(model.records) else None)
            failures += lost is not None
            model.cut(begin)
            taken = min(taken, begin)
        assert (log.safe, log.next) == (safe, len(model.records))
        assert read_all(log) == model.records[:safe]
        assert last_sequences(log) == model.topics()
        assert log.waiting() == sorted(model.waiting.values())


rows = st.builds(row, st.text(max_size=3), st.binary(max_size=99), sender=st.text(max_size=3), due=st.integers(0, 9))


@given(st.lists(st.tuples(rows, st.integers(0, 2**63 - 1)), min_size=1, max_size=20), st.data())
def test_blocks_are_made_of_rows_and_cut(given_: list, data: st.DataObject) -> None:
    made = [
        (10 + n, n + 1, stored_at, topic, payload, fields, sender, session, number, sent, expires, due)
        for n, ((topic, payload, fields, sender, session, number, sent, expires, due), stored_at) in enumerate(given_)
    ]
    block = encode_records(made)
    assert block_records(block) == made
    at = data.draw(st.integers(10, 9 + len(made)))
    most = data.draw(st.integers(0, len(block)))
    first, end, part = block_part(block, at, most)
    assert first == at
    assert block_records(part) == made[at - 10 : end - 10]
    assert len(part) <= most or end == at + 1
    if end < 10 + len(made):
        assert len(encode_records(made[at - 10 : end - 9])) > most
