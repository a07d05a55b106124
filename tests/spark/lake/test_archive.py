"""The archive: every message once, whatever is killed or concurrent; losses are errors; retention follows."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from busway.spark.endpoints import DataLoss
from busway.spark.lake.archive import Archiver, Progress, archive
from busway.spark.lake.coverage import Covered, LakeError, Snapshot
from busway.spark.lake.delta_table import Lake, app_id
from busway.spark.lake.table import table
from busway.spark.options import read_options
from busway.spark.source import tail
from tests.support.spark import lakes
from tests.support.spark.bus import Served, served

NUMBERS = count(1)


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as bus:
        yield bus


@pytest.fixture
def name(bus: Served) -> str:
    """A stream of its own for each test."""
    made = f"s{next(NUMBERS)}"
    bus.stream(made)
    return made


def publish(bus: Served, name: str, count: int, topics: int = 3) -> None:
    for topic in range(topics):
        bus.bus.publish_many(f"{name}/{topic}", [b"%d" % n for n in range(count)], durable=True)


def once(spark: SparkSession, bus: Served, name: str, lake: Path, kind: str = "url", **more: object) -> Progress:
    return archive(spark, str(lake), streams=[name], once=True, **bus.options(kind), **more)  # type: ignore[arg-type]


def whole(bus: Served, name: str, lake: Path) -> None:
    """The lake has each message of the stream once, as it was published."""
    found = lakes.rows(lake)
    stored = [message for some in bus.bus.stream(name).read() for message in some]
    assert lakes.repeated(found) == []
    assert [(row["offset"], row["topic"], row["sequence"], row["payload"], row["id"]) for row in found] == [
        (one.offset, one.topic, one.sequence, one.payload, one.id) for one in stored
    ]


@pytest.mark.parametrize("kind", ["url", "path"])
def test_each_message_is_there_once(spark: SparkSession, bus: Served, name: str, tmp_path: Path, kind: str) -> None:
    publish(bus, name, 100)
    first = once(spark, bus, name, tmp_path, kind)
    assert (first.version > 0, first.rows, first.lost, first.lag, first.total) == (True, 300, 0, 0, 300)
    whole(bus, name, tmp_path)
    assert once(spark, bus, name, tmp_path, kind).version == -1
    publish(bus, name, 50, topics=4)
    again = once(spark, bus, name, tmp_path, "url")  # the same broker, however it is read
    assert (again.version > first.version, again.rows, again.total) == (True, 200, 500)
    whole(bus, name, tmp_path)
    row = lakes.rows(tmp_path)[0]
    assert (row["broker"], row["stream"], row["sender"], row["fields"]) == (bus.guid, name, "", [])
    file = lakes.named(tmp_path)[0]
    assert (file.parent.parent.name, file.parent.name) == (f"stream={name}", f"date={row['stored']:%Y-%m-%d}")
    ids = [row["id"] for row in lakes.rows(tmp_path)]
    assert [
        (one["begin"], one["end"], one["last"]) for commit in lakes.commits(tmp_path) for one in commit["ranges"]
    ] == [
        (0, 300, ids[299]),
        (300, 500, ids[499]),
    ]
    opened = DeltaTable(tmp_path)
    assert opened.transaction_version(app_id((bus.guid, name))) == 500
    assert (opened.protocol().min_reader_version, opened.protocol().min_writer_version) == (1, 2)
    statistics = opened.get_add_actions(flatten=True)
    assert sorted(
        zip(*(statistics[name].to_pylist() for name in ("num_records", "min.offset", "max.offset")), strict=True)
    ) == [
        (200, 300, 499),
        (300, 0, 299),
    ]
    channels = {one.name: one for one in bus.bus.channels(name)}
    assert (channels["archived"].floor, channels["archived"].lag) == (500, 0)


def test_a_streaming_query_archives_the_same(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 50)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 20)
    stop, seen = threading.Event(), list[Progress]()

    def progress(one: Progress) -> None:
        seen.append(one)
        if len(seen) < 3:
            publish(bus, name, 5)
        else:
            stop.set()

    done = archive(
        spark, str(tmp_path), url=bus.url, streams=[name], follow=True, interval="1ms", stop=stop, progress=progress
    )
    assert done == seen[-1]
    assert sum(one.rows for one in seen) == 90
    whole(bus, name, tmp_path)
    publish(bus, name, 5)
    assert once(spark, bus, name, tmp_path, follow=True).rows == 15  # it begins where the table ends
    whole(bus, name, tmp_path)
    assert {one.name: one.floor for one in bus.bus.channels(name)} == {"archived": 255}


class Killed(BaseException):
    """Ends a round as a kill does: nothing is tidied up."""


def kill_after(call: Callable[..., object]) -> Callable[..., object]:
    def killing(*given: object, **more: object) -> object:
        call(*given, **more)
        raise Killed

    return killing


@pytest.mark.parametrize("at", ["before writing", "written", "moved", "committed"])
def test_a_round_that_is_killed_has_happened_or_not(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bus, name, 20)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 30)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "unstage", lambda *_: None)
        if at == "before writing":
            patch.setattr(Archiver, "_frame", kill_after(Archiver._frame))
        elif at == "written":
            patch.setattr(Lake, "place", kill_after(lambda *_: None))
        elif at == "moved":
            patch.setattr(Lake, "place", kill_after(Lake.place))
        else:
            patch.setattr(Lake, "commit", kill_after(Lake.commit))
        with pytest.raises(Killed):
            once(spark, bus, name, tmp_path)
    assert len(set(lakes.on_disk(tmp_path)) - set(lakes.named(tmp_path))) == (at == "moved")
    done = once(spark, bus, name, tmp_path)
    assert (done.version == -1) == (at == "committed")
    whole(bus, name, tmp_path)
    assert {one.name: one.floor for one in bus.bus.channels(name)} == {"archived": 150}
    Lake(tmp_path).vacuum(0)
    assert sorted(lakes.on_disk(tmp_path)) == sorted(lakes.named(tmp_path))
    assert list((tmp_path / "_staging").iterdir()) == []
    whole(bus, name, tmp_path)


def test_two_archives_write_each_message_once(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one commits while the first one is between its files and its commit, the first time it gets there."""
    publish(bus, name, 10)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 20)
    place, both = Lake.place, [True]

    def placed(lake: Lake, staging: str) -> object:
        if both.pop() if both else False:
            assert once(spark, bus, name, tmp_path).rows == 60
            publish(bus, name, 5)
        return place(lake, staging)

    monkeypatch.setattr(Lake, "place", placed)
    assert once(spark, bus, name, tmp_path).rows == 15
    whole(bus, name, tmp_path)
    assert sorted(lakes.on_disk(tmp_path)) == sorted(lakes.named(tmp_path))  # the loser has removed its files


def test_archives_of_different_streams_share_a_lake(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"s{next(NUMBERS)}"
    bus.stream(other)
    publish(bus, name, 10)
    publish(bus, other, 10)
    place, both = Lake.place, [True]

    def placed(lake: Lake, staging: str) -> object:
        if both.pop() if both else False:
            once(spark, bus, other, tmp_path)
        return place(lake, staging)

    monkeypatch.setattr(Lake, "place", placed)
    once(spark, bus, name, tmp_path)
    snapshot = Lake(tmp_path).snapshot()
    assert {place[1]: part.end for place, part in snapshot.covered.items()} == {name: 30, other: 30}
    assert snapshot.rows == {name: 30, other: 30}
    assert snapshot.changed == ()


def test_what_expired_before_it_was_archived(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 100)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 500)
    first = bus.forget(name, 300)
    assert first > 300
    text = rf"{first - 300} messages of the stream '{name}'.*the offsets 300 to {first - 1}.*--skip-lost"
    for follow in (False, True):
        with pytest.raises(DataLoss, match=text):
            once(spark, bus, name, tmp_path, follow=follow)
    other = f"s{next(NUMBERS)}"
    bus.stream(other)
    publish(bus, other, 10)
    with pytest.raises(DataLoss, match="--skip-lost"):  # of the one, which keeps the other from nothing
        archive(spark, str(tmp_path), url=bus.url, streams=[name, other], once=True)
    assert Counter(row["stream"] for row in lakes.rows(tmp_path)) == {name: 300, other: 30}
    done = once(spark, bus, name, tmp_path, fail_on_data_loss=False)
    assert (done.lost, done.rows, done.damaged) == (first - 300, 1800 - first, ())
    (covered,) = lakes.commits(tmp_path)[-1]["ranges"]
    assert (covered["begin"], covered["end"], covered["lost"]) == (300, 1800, first - 300)
    assert [row["offset"] for row in lakes.rows(tmp_path) if row["stream"] == name] == [
        *range(300),
        *range(first, 1800),
    ]


@pytest.mark.parametrize("follow", [False, True])
def test_what_is_damaged_is_told(spark: SparkSession, bus: Served, name: str, tmp_path: Path, follow: bool) -> None:
    publish(bus, name, 200)
    bucket = sorted((bus.folder / "streams" / name / "log").glob("*.log"))[1]
    content = bytearray(bucket.read_bytes())
    content[len(content) // 2] ^= 1
    bucket.write_bytes(content)
    with pytest.raises(DataLoss, match=f"messages of the stream '{name}'.*are lost.*--skip-lost"):
        once(spark, bus, name, tmp_path, "path", follow=follow)
    done = once(spark, bus, name, tmp_path, "path", follow=follow, fail_on_data_loss=False)
    assert 555 < done.rows < 605
    (covered,) = lakes.commits(tmp_path)[-1]["ranges"]
    assert (covered["begin"], covered["end"]) == (0, 600)
    if follow:  # counts what is missing
        assert covered["lost"] == done.lost == 600 - done.rows
    else:
        assert covered["damaged"]
        assert done.damaged == (name,)


def test_a_stream_in_memory_that_begins_anew(spark: SparkSession, tmp_path: Path) -> None:
    lake, ends = tmp_path / "lake", tmp_path / "data/streams/ends.json"
    for published in (50, 7):
        with served(tmp_path / "data") as bus:
            bus.bus.create_stream("m", ["m/**"], store="memory")
            killed = ends.read_bytes()
            publish(bus, "m", published, topics=1)
            assert once(spark, bus, "m", lake).rows == published
            publish(bus, "m", 1, topics=1)
            everything = table(spark, str(lake), url=bus.url, streams=["m"], columns=["offset"])
            offsets = sorted(row[0] for row in everything.collect())
        ends.write_bytes(killed)  # a broker that ends well would note where the stream ended
    assert offsets == [*range(50), *range(1 << 40, (1 << 40) + 8)]
    assert [commit["ranges"][0]["lost"] for commit in lakes.commits(lake)] == [0, 0]


def test_an_archive_that_fails_makes_no_lake(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no stream 'nothing'"):
        once(spark, bus, "nothing", tmp_path)
    with pytest.raises(LakeError, match="is not a lake"):
        table(spark, str(tmp_path))
    assert once(spark, bus, name, tmp_path).version == -1
    assert table(spark, str(tmp_path)).count() == 0  # nothing there is no error


def test_retention_waits_for_the_archive(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    name = f"s{next(NUMBERS)}"
    bus.stream(name, max_count=256, retain_until="archived")
    publish(bus, name, 1000)
    assert bus.forget(name, 256) == 0
    assert bus.bus.stream(name).info().held > 2000
    once(spark, bus, name, tmp_path)
    assert bus.forget(name, 256) > 2000
    publish(bus, name, 10)
    assert once(spark, bus, name, tmp_path).rows == 30
    assert [row["offset"] for row in lakes.rows(tmp_path)] == list(range(3030))


def test_it_goes_on_until_it_is_stopped(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files are merged meanwhile, and the old ones deleted."""
    monkeypatch.setattr("busway.spark.lake.upkeep._MANY", 4)
    stop, seen = threading.Event(), list[Progress]()

    def progress(one: Progress) -> None:
        seen.append(one)
        if len(seen) < 6:
            publish(bus, name, 2, topics=1)
        else:
            stop.set()

    archive(
        spark, str(tmp_path), url=bus.url, streams=[name], interval="1ms", stop=stop, progress=progress, optimize_below=1 << 20,
        keep=0.0,
    )  # fmt: skip
    assert sum(one.rows for one in seen) == 10
    assert [entry["operation"] for entry in DeltaTable(tmp_path).history()].count("OPTIMIZE") == 1
    whole(bus, name, tmp_path)
    assert sorted(lakes.on_disk(tmp_path)) == sorted(lakes.named(tmp_path))


def test_a_lake_has_one_choice_of_topics(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 10)
    bus.bus.publish_many(f"{name}/1,2", [b"comma"] * 4, durable=True)
    lake, topic = tmp_path / "lake", f"{name}/1,2"
    assert once(spark, bus, name, lake, topics=[topic]).rows == 4
    assert {row["topic"] for row in lakes.rows(lake)} == {topic}
    assert bus.bus.channels(name) == []  # the other topics are not archived
    publish(bus, name, 10)
    bus.bus.publish(topic, b"comma", durable=True)
    followed = once(spark, bus, name, lake, topics=[topic], follow=True)
    assert (followed.rows, followed.lost) == (1, 0)
    assert once(spark, bus, name, tmp_path / "named", topics=[topic], channel="mine").rows == 5
    assert {one.name: one.floor for one in bus.bus.channels(name)} == {"mine": 65}
    with pytest.raises(LakeError, match=rf"archives the topics {topic}, not \*\*"):
        once(spark, bus, name, lake)


@pytest.mark.parametrize("kind", ["url", "path"])
@pytest.mark.parametrize(
    ("end", "last", "text"),
    [(1000, "", "ends at offset 6, but is archived up to 1000"), (4, "0" * 32, "at offset 3, but 0{32} is archived")],
)
def test_an_end_that_is_lost_is_told(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, end: int, last: str, text: str, kind: str
) -> None:
    """Also if other messages have its offsets by now, as after a promotion of a mirror that lacked them."""
    publish(bus, name, 2)
    lake = Lake(tmp_path)
    lake.create()
    covered = Covered(bus.guid, name, 0, end, last=last)
    lake.commit(Snapshot(0), (), (covered,), ("**",))
    for follow in (False, True):
        with pytest.raises(LakeError, match=text):
            once(spark, bus, name, tmp_path, kind, follow=follow)
    with pytest.raises(LakeError, match=text):
        tail.partitions(read_options(bus.options(kind) | {"behind": str(tmp_path), "streams": name}))
