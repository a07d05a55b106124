"""A replay stores each message once, in order, with its time and fields, however often it is stopped and started."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from busway.message import Message
from busway.positions import Position
from busway.spark.lake.replay import FIELD, Pace, Replayed, ReplayFailed, replay
from busway.spark.lake.replay_progress import Progress, ProgressError
from tests.support.spark.bus import Served, served
from tests.support.spark.rows import row, table

COUNT = 2500


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as bus:
        bus.bus.create_stream("orders", ["orders/**"])
        for number in range(COUNT // 2):
            bus.bus.publish(f"orders/{number % 3}", b"%d" % number, durable=True, fields={"n": f"{number}"})
        bus.bus.publish_many("log", [b"%d" % number for number in range(COUNT // 2)], durable=True)
        yield bus


@pytest.fixture(scope="module")
def stored(spark: SparkSession, bus: Served) -> DataFrame:
    """Everything that is stored before the first replay."""
    ends = {one.name: one.next for one in bus.bus.streams()}
    reader = spark.read.format("busway").options(path=str(bus.folder), endingOffsets=json.dumps(ends))
    return reader.load().cache()


def everything(bus: Served, pattern: str) -> list[Message]:
    return [one for name in ("default", "orders") for some in bus.bus.stream(name).read(topic=pattern) for one in some]


def check(bus: Served, prefix: str) -> None:
    """Each of them is there once, and in the order of its stream."""
    found = everything(bus, f"{prefix}/**")
    origins = [Position.parse(one.fields[FIELD]) for one in found]
    assert Counter(origins).most_common(1)[0][1] == 1
    assert len(origins) == COUNT
    for name in ("default", "orders"):
        offsets = [one.offset for one in origins if one.stream == name]
        assert offsets == sorted(offsets)


class Ends:
    """Ends the replay when it is asked the so-many-th time, or raises then."""

    def __init__(self, after: int, error: Exception | None = None) -> None:
        self.left = after
        self.error = error
        self.waits: list[float] = []

    def __call__(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.left -= 1
        if self.left < 0 and self.error is not None:
            raise self.error
        return self.left < 0


class Dies(Ends):
    """Dies when it is asked the so-many-th time, and all that was sent until then is stored."""

    def __init__(self, after: int, bus: Served, pattern: str) -> None:
        super().__init__(after, OSError("dead"))
        self._stored = lambda: len(everything(bus, pattern)) >= after * 1000

    def __call__(self, seconds: float) -> bool:
        if not self.left:
            limit = time.monotonic() + 30
            while not self._stored() and time.monotonic() < limit:
                time.sleep(0.02)
        return super().__call__(seconds)


def test_messages_come_back_with_all_they_had_and_only_once(bus, stored, tmp_path):
    told: list[tuple[int, int]] = []

    def again(state: str, **more: Any) -> Replayed:
        to = "one/{stream}/{topic}"
        return replay(
            stored, url=bus.url, name="whole", state=tmp_path / state, to=to, tell=lambda *one: told.append(one), **more
        )

    assert again("a.json") == Replayed("whole", COUNT, COUNT, COUNT)
    assert told[0] == (0, COUNT)
    assert told[-1] == (COUNT, COUNT)
    check(bus, "one")
    origin = {str(one.position): one for one in everything(bus, "**") if FIELD not in one.fields}
    for one in everything(bus, "one/**"):
        place = Position.parse(one.fields[FIELD])
        was = origin[str(place)]
        assert one.topic == f"one/{place.stream}/{was.topic}"
        assert one.payload == was.payload
        assert one.fields == {**was.fields, FIELD: str(place)}
        assert abs(one.time - was.time).total_seconds() < 1e-5

    assert again("a.json") == Replayed("whole", COUNT, COUNT, 0)
    assert again("lost.json") == Replayed("whole", COUNT, COUNT, 0), "the file is lost, and nothing is stored again"
    check(bus, "one")


def test_one_that_ends_early_goes_on(bus, stored, tmp_path):
    def again(**more: Any) -> Replayed:
        return replay(stored, url=bus.url, name="early", state=tmp_path / "s.json", to="early/{topic}", **more)

    first = again(ended=Ends(2))
    assert first == Replayed("early", COUNT, 2000, 2000)
    assert not first.finished
    with pytest.raises(ProgressError, match=r"has 500 messages left by .*, but there are 499"):
        replay(
            stored.where("payload != '1249' or stream = 'orders'"),
            url=bus.url,
            name="early",
            state=tmp_path / "s.json",
            to="early/{topic}",
        )
    with pytest.raises(ProgressError, match=r"'early' to 'early/{topic}', not of 'early' to 'late'"):
        replay(stored, url=bus.url, name="early", state=tmp_path / "s.json", to="late")
    assert again() == Replayed("early", COUNT, COUNT, 500)
    check(bus, "early")


def test_one_that_dies_between_storing_and_noting_stores_nothing_twice(bus, stored, tmp_path, monkeypatch):
    monkeypatch.setattr("busway.spark.lake.replay._OFTEN", 1e9)  # nothing is noted on the way

    def again(**more: Any) -> Replayed:
        return replay(stored, url=bus.url, name="dies", state=tmp_path / "s.json", to="dies/{topic}", **more)

    for dead in (1, 2):
        with pytest.raises(OSError, match="dead"):
            again(ended=Dies(dead, bus, "dies/**"))
        assert Progress.read(tmp_path / "s.json", "dies", "dies/{topic}").done == 0
        assert len(everything(bus, "dies/**")) == dead * 1000
    # Stopped among what is stored already: what lies behind must be found once more.
    assert again(ended=Ends(1)) == Replayed("dies", COUNT, 1000, 0)
    assert again() == Replayed("dies", COUNT, COUNT, 500)
    check(bus, "dies")


def test_of_two_at_a_time_the_later_one_goes_on(bus, stored, tmp_path):
    def again(**more: Any) -> Replayed:
        return replay(stored, url=bus.url, name="two", state=tmp_path / "s.json", to="two/{topic}", **more)

    later: list[Replayed] = []

    def meanwhile(_seconds: float) -> bool:
        if everything(bus, "two/**") and not later:
            later.append(again())
        return False

    with pytest.raises(ReplayFailed, match="another connection"):
        again(ended=meanwhile)
    assert later == [Replayed("two", COUNT, COUNT, COUNT - 1000)]
    check(bus, "two")


def test_at_the_original_speed_it_waits_for_what_is_not_due(bus, spark, tmp_path):
    """The rows are a second apart."""
    rows = [row(offset, "slow") for offset in range(5)]
    ends = Ends(5)
    done = replay(table(spark, rows), url=bus.url, name="slow", state=tmp_path / "s.json", speed=0.001, ended=ends)
    assert (done.done, done.total) == (1, 5)
    assert [wait for wait in ends.waits if wait]
    assert len(everything(bus, "slow")) == 1
    rows += [row(offset, "slow") for offset in range(5, 8)]  # what comes later is no part of it
    done = replay(table(spark, rows), url=bus.url, name="slow", state=tmp_path / "s.json", rate=10_000)
    assert (done.done, done.stored) == (5, 4)
    assert [one.payload for one in everything(bus, "slow")] == [b"0", b"1", b"2", b"3", b"4"]


def test_what_can_not_be_replayed_is_named(bus, spark, tmp_path):
    rows = table(spark, [row(0, "a"), row(1, "b")])
    options: dict[str, Any] = {"url": bus.url, "name": "bad", "state": tmp_path / "s.json"}
    with pytest.raises(ReplayFailed, match=f"the message {'0' * 32}:0:s can't be replayed: the topic '\\$bus/a'"):
        replay(rows, **options, to="$bus/{topic}")
    for wrong, why in (
        ("{topic", "expected '}'"),
        ("{payload}", "use {topic}, {stream}, {broker}"),
        ("", "empty"),
    ):
        with pytest.raises(ValueError, match=why):
            replay(rows, **options, to=wrong)
    with pytest.raises(ValueError, match="the column 'time' is missing"):
        replay(rows.drop("time"), **options)


def test_when_messages_are_due():
    assert Pace().until([0.0, 5.0, 9.0], 7, 0.0) == 3
    assert Pace(speed=2).until([0.0, 5.0, 9.0], 7, 2.5) == 2
    assert Pace(rate=10).until([0.0, 0.0, 0.0], 7, 0.8) == 2
    assert Pace(rate=10).due(99.0, 8) == 0.8
    assert Pace(speed=0.5).due(-3.0, 8) == 0
    with pytest.raises(ValueError, match="exclude each other"):
        Pace(speed=1, rate=1)
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above zero"):
            Pace(rate=bad)


def test_how_far_it_is_survives_and_what_is_damaged_is_told(tmp_path: Path):
    file = tmp_path / "deep" / "s.json"
    assert Progress.read(file, "a", "t") is None
    whole = Progress(name="a", to="t", total=5, ends={"b/s": 4}, places={"s": 3}, done=2, key=(1, "b", "s", 4))
    whole.write(file)
    assert Progress.read(file, "a", "t") == whole
    assert not whole.finished
    assert replace(whole, done=5).finished
    assert [one.name for one in file.parent.iterdir()] == ["s.json"]
    for text in ("", "[]", "{}", '{"version": 1}', file.read_text()[:-9]):
        file.write_text(text)
        with pytest.raises(ProgressError, match="is not the progress of a replay"):
            Progress.read(file, "a", "t")
