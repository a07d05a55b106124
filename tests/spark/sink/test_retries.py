"""The sink's tries at a partition, one after the other, without Spark's own: what one has stored the next does not store again.

The tasks' context is Spark's class, filled in by hand.
"""

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

import busway
from busway import sync
from busway.errors import Code
from busway.spark.options import OptionError
from busway.spark.sink import ledger, rows
from busway.spark.sink.sink import BatchWriter, Done, WriteFailed
from busway.streams import StreamInfo
from tests.support.spark.sink import (
    SCHEMA,
    Breaks,
    Place,
    Source,
    batches,
    context,
    epoch,
    table,
)

ROWS = [(f"t/{number % 3}", f"row {number % 40}") for number in range(50)]
"""Some of them twice."""


@pytest.fixture(autouse=True)
def _no_context() -> Iterator[None]:
    yield
    TaskContext._setTaskContext(None)


def batch_writer(place: Place, schema: StructType = SCHEMA, **options: str) -> BatchWriter:
    return Source(url=place.url, timeout="20", **options).writer(schema, overwrite=False)


def test_a_task_that_failed_half_way_goes_on_in_another_order(place: Place) -> None:
    writer = batch_writer(place)
    context()
    with pytest.raises(Breaks):
        writer.write(batches(ROWS[:30], breaks=True))
    context(attemptNumber=1, taskAttemptId=1)
    done = writer.write(batches(ROWS[::-1]))
    assert place.rows() == sorted(ROWS)
    assert (done.skipped + done.stored, done.stored) == (50, 50 - done.skipped)
    assert done.skipped > 0


def test_a_stage_that_is_tried_again_says_nothing_of_it(place: Place) -> None:
    """Spark tells Python of attempts at a task, and not at a stage: the broker knows that somebody was here."""
    writer = batch_writer(place)
    context()
    writer.write(batches(ROWS))
    context(taskAttemptId=5)
    assert writer.write(batches(ROWS[::-1])) == Done(0, 0, 50)
    assert place.rows() == sorted(ROWS)


def test_two_writes_are_two(place: Place) -> None:
    for _ in range(2):
        context()
        batch_writer(place).write(batches(ROWS))
    assert place.rows() == sorted(ROWS * 2)


def test_partitions_are_publishers_of_their_own(place: Place) -> None:
    writer = batch_writer(place)
    for partition in range(2):
        context(partitionId=partition)
        assert writer.write(batches(ROWS)) == Done(partition, 50, 0)
    assert place.rows() == sorted(ROWS * 2)


def test_a_late_try_can_not_write(place: Place) -> None:
    """It was cut off before it could connect, and another one has done its work meanwhile."""
    writer = batch_writer(place)
    context(attemptNumber=1, taskAttemptId=7)
    writer.write(batches(ROWS))
    context(taskAttemptId=3)
    with pytest.raises(busway.ConnectFailed, match="later generation") as told:
        writer.write(batches(ROWS))
    assert told.value.code == Code.SESSION_TAKEN
    assert place.rows() == sorted(ROWS)


def test_the_successor_ends_a_try_that_is_at_work(place: Place) -> None:
    writer = batch_writer(place)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from batches(ROWS[:20])
        context(attemptNumber=1, taskAttemptId=1)
        assert writer.write(batches(ROWS[::-1])).skipped == 20
        yield from batches(ROWS[20:])

    context()
    with pytest.raises(WriteFailed, match="same session"):
        writer.write(overtaken())
    assert place.rows() == sorted(ROWS)


def test_the_first_epoch_of_a_query_reads_nothing_that_was_there_before_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(place.url) as bus:
        bus.publish_many("t/old", [b"x"] * 300, durable=True)
    begun: list[int] = []
    read = ledger._read

    def noted(bus: Any, info: Any, session: int, begin: int, found: Any, **more: Any) -> None:
        begun.append(begin)
        read(bus, info, session, begin, found, **more)

    monkeypatch.setattr(ledger, "_read", noted)
    with pytest.raises(Breaks):
        epoch(place, 0, ROWS[:30], breaks=True)
    assert begun == [300]
    done = epoch(place, 0, ROWS[::-1], "run-2")
    assert (begun, done.skipped) == ([300, 300], 30)
    assert place.rows() == sorted([*ROWS, *[("t/old", "x")] * 300])


def test_an_epoch_is_replayed_long_after_and_after_a_restart(place: Place) -> None:
    with sync.connect(place.url) as bus:
        bus.create_stream("t", ["t/**"], once="1s")
    epoch(place, 0, ROWS)
    with pytest.raises(Breaks):
        epoch(place, 1, ROWS[:30], breaks=True)
    place.restart()
    last = max(message.time.timestamp() for message in place.stored())
    while time.time() < last + 2:
        time.sleep(0.05)
    with sync.connect(place.url) as bus:
        bus.publish("t/0", "now", durable=True)
    done = epoch(place, 1, ROWS[::-1], "run-2")
    assert done.skipped == 30
    assert place.rows() == sorted([*ROWS, *ROWS, ("t/0", "now")])


def test_an_epoch_that_was_noted_but_not_committed_is_replayed(place: Place) -> None:
    for number in range(2):
        epoch(place, number, ROWS)
    place.restart()
    assert epoch(place, 1, ROWS[::-1], "run-2").skipped == 50
    assert epoch(place, 2, ROWS, "run-2").skipped == 0
    assert place.rows() == sorted(ROWS * 3)


def test_without_a_ledger_nothing_is_stored_twice(place: Place) -> None:
    epoch(place, 0, ROWS)
    epoch(place, 1, ROWS, commit=False)
    with sync.connect(place.url, name=f"spark {ledger.label('query')}") as bus:
        assert bus.unpin(ledger.topic("query"))
    assert epoch(place, 1, ROWS[::-1], "run-2").skipped == 50
    with sync.connect(place.url, name=f"spark {ledger.label('query')}") as bus:
        bus.pin(ledger.topic("query"), "no ledger")
    assert epoch(place, 1, ROWS[::-1], "run-3").skipped == 50
    assert place.rows() == sorted(ROWS * 2)


def test_the_next_epoch_of_a_run_reads_nothing_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    stored = ledger.stored

    def counted(bus: Any, session: int, begin: Any, **more: Any) -> Any:
        reads.append(begin)
        return stored(bus, session, begin, **more)

    monkeypatch.setattr(ledger, "stored", counted)
    epoch(place, 0, ROWS)
    assert reads == [{"default": 0}]
    epoch(place, 1, ROWS)
    epoch(place, 2, ROWS)
    assert len(reads) == 1
    place.restart()
    epoch(place, 3, ROWS)
    assert reads[1:] == [{"default": 150}]
    epoch(place, 4, ROWS, "run-2")
    assert reads[2:] == [{"default": 200}]


def test_what_the_broker_adds_is_no_difference(place: Place) -> None:
    place.more = {"fields": {"site": "krk", "floor": 3}}
    place.restart()
    writer = batch_writer(place)
    context()
    writer.write(batches(ROWS))
    context(attemptNumber=1, taskAttemptId=1)
    assert writer.write(batches(ROWS[::-1])).skipped == 50
    assert place.stored()[0].fields == {"site": "krk", "floor": 3}


def test_rows_that_differ_in_their_time_are_different(place: Place) -> None:
    schema = table("topic string, payload string, time timestamp")
    writer = batch_writer(place, schema)
    given = [("t", "same", datetime(2026, 1, 31, 12, 0, second, tzinfo=UTC)) for second in range(20)]
    context()
    with pytest.raises(Breaks):
        writer.write(batches(given[:10], breaks=True))
    context(attemptNumber=1, taskAttemptId=1)
    assert writer.write(batches(given[::-1])).skipped == 10
    assert sorted(message.time for message in place.stored()) == [one[2] for one in given]


def test_numbers_whose_messages_are_gone_are_not_used_again(place: Place) -> None:
    """The stream has dropped what was stored, but knows the numbers: rows under those would be taken for sent again."""
    with sync.connect(place.url) as bus:
        bus.create_stream("t", ["t/**"], max_count=256)
        writer = batch_writer(place)
        context()
        with pytest.raises(Breaks):
            writer.write(batches(ROWS[:30], breaks=True))
        while bus.stream("t").info().first < 30:
            bus.publish_many("t/x", ["x"] * 1000, durable=True)
    context(attemptNumber=1, taskAttemptId=1)
    assert writer.write(batches(ROWS[::-1])).stored == 50
    assert [row for row in place.rows() if row[1] != "x"] == sorted(ROWS)


def test_other_rows_than_before_are_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    writer = batch_writer(place)
    context()
    writer.write(batches(ROWS))
    context(attemptNumber=1, taskAttemptId=1)
    done = writer.write(batches([*ROWS[5:], ("t/9", "new")]))
    assert done == Done(0, 1, 45, 5)
    with caplog.at_level(logging.ERROR, "busway.spark"):
        writer.commit([done])
    assert "5 rows that an earlier attempt has stored are not among the rows now" in caplog.messages[0]


def test_a_commit_tells_what_was_there(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    writer = batch_writer(place)
    with caplog.at_level(logging.WARNING, "busway.spark"):
        writer.commit([Done(0, 5, 0), Done(1, 6, 0)])
        assert not caplog.messages
        writer.commit([Done(0, 5, 3), Done(1, 6, 4)])
        writer.abort([Done(0, 5, 0), None])
    assert "an earlier attempt has stored 7 rows, this one 11" in caplog.messages[0]
    assert "at least 5 rows are stored" in caplog.messages[1]


def test_streams_that_forget_soon_are_not_sent_to_again(place: Place) -> None:
    with sync.connect(place.url) as bus:
        bus.create_stream("t", ["t/**"], once="1s")
    writer = batch_writer(place)

    def cut() -> Iterator[pa.RecordBatch]:
        yield from batches(ROWS[:20])
        place.restart()
        yield from batches(ROWS[20:])

    context()
    with pytest.raises(WriteFailed, match="closed"):
        writer.write(cut())
    context(attemptNumber=1, taskAttemptId=1)
    writer.write(batches(ROWS[::-1]))
    assert place.rows() == sorted(ROWS)


def test_a_broker_that_comes_back_soon_is_waited_for(place: Place) -> None:
    writer = batch_writer(place)

    def cut() -> Iterator[pa.RecordBatch]:
        yield from batches(ROWS[:20])
        place.restart()
        yield from batches(ROWS[20:])

    context()
    assert writer.write(cut()) == Done(0, 50, 0)
    assert place.rows() == sorted(ROWS)


def test_a_broker_that_is_gone_is_told(place: Place) -> None:
    place.server.stop()
    with pytest.raises(busway.ConnectFailed):
        Source(url=place.url, timeout="0.3", topic="t").writer(SCHEMA, overwrite=False)


# Bad input.


@pytest.mark.parametrize(
    ("ddl", "options", "told"),
    [
        ("payload string", {}, "add a column topic, or give the option topic"),
        ("topic string", {}, "the column payload"),
        ("topic string, payload int", {}, "'payload' must be binary or string, not int"),
        ("topic string, payload string, fields map<string,int>", {}, "'fields' must be map<string,string>"),
        ("topic string, paylod string", {}, "no column 'paylod' in a message .did you mean 'payload'"),
        ("topic string, payload string", {"topics": "a"}, "no option 'topics' .did you mean 'topic'"),
        ("payload string", {"topic": "a/*"}, "option topic can't be 'a/[*]'"),
        ("payload string", {"topic": "$bus/x"}, "belong to the broker"),
        ("topic string, payload string", {"url": "tcp://h:1,tcp://h:2"}, "give one url"),
        ("topic string, payload string", {"url": ""}, "option url can't be ''"),
    ],
)
def test_what_is_wrong_is_told_at_the_start(ddl: str, options: dict[str, str], told: str) -> None:
    given = {"url": "tcp://127.0.0.1:1"} | options
    with pytest.raises(OptionError, match=told):
        Source(**given).streamWriter(table(ddl), overwrite=False)


def test_nothing_can_be_overwritten() -> None:
    with pytest.raises(OptionError, match=r'mode\("append"\)'):
        Source(url="tcp://127.0.0.1:1").writer(SCHEMA, overwrite=True)


BATCH = {"topic": pa.string(), "payload": pa.binary(), "fields": pa.map_(pa.string(), pa.string()), "key": pa.string()}


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"topic": "a//b"}, "the topic 'a//b' can't be stored"),
        ({"topic": "a/*"}, "without wildcards"),
        ({"topic": "$bus/x"}, "belong to the broker"),
        ({"topic": None}, "the topic is null: fill it, or give the option topic"),
        ({"payload": None}, "the payload is null"),
        ({"fields": [(".x", "1")]}, "its fields can't be stored"),
        ({"fields": [("key", "1")], "key": "2"}, "the field 'key' and the column key exclude each other"),
    ],
)
def test_a_bad_row_is_named(bad: dict[str, Any], told: str) -> None:
    good = {"topic": "a", "payload": b"x", "fields": None, "key": None}
    made = rows.Rows("", 3)
    assert len(made.runs(pa.RecordBatch.from_pylist([good] * 10, pa.schema(BATCH)))) == 1
    with pytest.raises(rows.BadRow, match=f"row 12 of partition 3: .*{told}"):
        made.runs(pa.RecordBatch.from_pylist([good, good, good | bad], pa.schema(BATCH)))


@pytest.mark.parametrize("year", [1969, 2263, 9999])
def test_a_time_that_no_message_can_have_is_named(year: int) -> None:
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC), datetime(year, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", "a"]), pa.array([b"x", b"y"]), times], ["topic", "payload", "time"]
    )
    with pytest.raises(rows.BadRow, match="row 1 of partition 0: the time must lie between 1970 and 2262"):
        rows.Rows("", 0).runs(batch)


def test_more_topics_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_TOPICS", 10)
    made = rows.Rows("", 0)
    for begin in range(0, 60, 6):
        topics = [f"many/{number}" for number in (*range(begin, begin + 6), 0, 1)]
        batch = pa.RecordBatch.from_arrays([pa.array(topics), pa.array([b"x"] * 8)], ["topic", "payload"])
        assert [run.topic for run in made.runs(batch)] == topics


def test_a_row_that_is_too_large_is_named(place: Place) -> None:
    writer = batch_writer(place)
    context(partitionId=4)
    with pytest.raises(WriteFailed, match=r"row 25 of partition 4 \('t/1', 9000000 bytes\)"):
        writer.write(batches([*ROWS[:25], ("t/1", "x" * 9_000_000), ("t/1", "y")]))


class Slow:
    """A bus of which a stream has taken ten messages, and makes them safe one by one when it is asked."""

    def __init__(self, most: int, end: int = 10) -> None:
        self.next, self.most, self.end = 0, most, end

    def stream(self, name: str) -> "Slow":
        assert name == "t"
        return self

    def info(self) -> StreamInfo:
        self.next = min(self.next + 1, self.most)
        return StreamInfo(name="t", topics=("t",), broker="", next=self.next, end=self.end)


def test_what_the_broker_has_taken_is_waited_for() -> None:
    """It may still be stored after its connection has ended, and could not be read yet."""
    taken = StreamInfo(name="t", topics=("t",), broker="", next=0, end=10)
    bus: Any = Slow(10)
    ledger.wait_until_stored(bus, taken, 5)
    assert bus.next == 10
    refused: Any = Slow(3, end=3)
    ledger.wait_until_stored(refused, taken, 5)
    assert refused.next == 3
    with pytest.raises(busway.Timeout, match="has not stored its accepted messages"):
        ledger.wait_until_stored(Slow(9), taken, 0.05)  # type: ignore[arg-type]
