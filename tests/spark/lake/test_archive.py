"""The archive: every message once, whatever is killed; files that commits name, and no others; retention that follows."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busway.spark.endpoints import DataLoss
from busway.spark.lake.archive import Archiver, Progress, archive
from busway.spark.lake.compact import compact
from busway.spark.lake.table import table
from busway.spark.lake.table_log import commits
from busway.spark.lake.table_log.commits import LakeError
from busway.spark.lake.table_log.folder import Lake
from busway.spark.options import read_options
from busway.spark.source import history
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
    assert sorted(lakes.on_disk(lake)) == sorted(lakes.named(lake))
    assert list((lake / "staging").iterdir()) == []


@pytest.mark.parametrize("kind", ["url", "path"])
def test_each_message_is_there_once(spark: SparkSession, bus: Served, name: str, tmp_path: Path, kind: str) -> None:
    publish(bus, name, 100)
    first = once(spark, bus, name, tmp_path, kind)
    assert (first.number, first.rows, first.lost, first.lag, first.total) == (1, 300, 0, 0, 300)
    whole(bus, name, tmp_path)
    assert once(spark, bus, name, tmp_path, kind).number == 0
    publish(bus, name, 50, topics=4)
    again = once(spark, bus, name, tmp_path, "url")  # the same broker, however it is read
    assert (again.number, again.rows, again.total) == (2, 200, 500)
    whole(bus, name, tmp_path)
    row = lakes.rows(tmp_path)[0]
    assert (row["broker"], row["stream"], row["sender"], row["fields"]) == (bus.guid, name, "", [])
    file = lakes.named(tmp_path)[0]
    assert file.parent.parent.name == f"stream={name}"
    assert file.parent.name == f"date={row['stored']:%Y-%m-%d}"
    ids = [row["id"] for row in lakes.rows(tmp_path)]
    assert [commit["ranges"] for commit in lakes.commits(tmp_path)] == [
        [
            {
                "broker": bus.guid,
                "stream": name,
                "begin": begin,
                "end": end,
                "lost": 0,
                "damaged": False,
                "last": ids[end - 1],
                "jumped": 0,
            }
        ]
        for begin, end in [(0, 300), (300, 500)]
    ]
    channels = {one.name: one for one in bus.bus.channels(name)}
    assert (channels["archived"].floor, channels["archived"].lag) == (500, 0)


class Killed(BaseException):
    """Ends a round as a kill does: nothing is tidied up."""


@pytest.mark.parametrize("at", ["staged", "first move", "moved", "committed", "commit half written"])
def test_a_round_that_is_killed_has_happened_or_not(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bus, name, 20)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 30)

    def kill_after(call: Callable[..., object], times: int = 1) -> Callable[..., object]:
        left = count(times, -1)

        def killing(*given: object, **more: object) -> object:
            done = call(*given, **more)
            if next(left) == 1:
                raise Killed
            return done

        return killing

    with monkeypatch.context() as patch:
        if at == "staged":
            patch.setattr(Archiver, "_write", kill_after(Archiver._write))
        elif at == "first move":
            patch.setattr(Lake, "_move", kill_after(Lake._move))
        elif at == "moved":
            patch.setattr(Lake, "place", kill_after(Lake.place))
        elif at == "committed":
            patch.setattr(Lake, "commit", kill_after(Lake.commit))
        else:
            patch.setattr("os.link", kill_after(lambda *_: None))
        with pytest.raises(Killed):
            once(spark, bus, name, tmp_path)
    left = {"staged": 0, "committed": 0}.get(at, 1)
    assert len(set(lakes.on_disk(tmp_path)) - set(lakes.named(tmp_path))) == left
    if at == "commit half written":  # a kill leaves it where it was being written
        (tmp_path / "commits/.00000002.json.abc.new").write_bytes(b'{"version"')
    done = once(spark, bus, name, tmp_path)
    assert done.number == (0 if at == "committed" else 2)
    whole(bus, name, tmp_path)
    assert {one.name: one.floor for one in bus.bus.channels(name)} == {"archived": 150}
    assert list((tmp_path / "commits").glob(".*")) == []


def test_one_at_a_time(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 5)
    with Lake(str(tmp_path)).lock(), pytest.raises(LakeError, match="is being written by process"):
        once(spark, bus, name, tmp_path)
    once(spark, bus, name, tmp_path)
    with pytest.raises(LakeError, match="is being written"), Lake(str(tmp_path)).lock():
        compact(spark, str(tmp_path))
    snapshot = Lake(str(tmp_path)).snapshot()
    commit = commits.Commit(number=1, time=0.0, kind="clean")
    other = Lake(str(tmp_path))
    with other.lock(), pytest.raises(LakeError, match="exists already"):
        other.commit(snapshot, commit)
    whole(bus, name, tmp_path)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda content: content[: len(content) // 2], "00000001.json is damaged"),
        (lambda content: b"", "00000001.json is damaged"),
        (lambda content: content.replace(b'"end": 15', b'"end": 25'), "checksum"),
        (lambda content: content.replace(b'"version": 1', b'"version": 7'), "version 7"),
        (None, "commit 1 of the lake is missing"),
    ],
)
def test_a_commit_that_is_damaged_is_told(tmp_path: Path, damage: Callable[[bytes], bytes] | None, text: str) -> None:
    lake = Lake(str(tmp_path))
    with lake.lock():
        snapshot = lake.snapshot()
        covered = commits.Covered("b", "s", 0, 15)
        lake.commit(snapshot, commits.Commit(number=1, time=0.0, kind="archive", ranges=(covered,)))
        lake.commit(snapshot, commits.Commit(number=2, time=0.0, kind="clean"))
    file = tmp_path / "commits/00000001.json"
    if damage is None:
        file.unlink()
    else:
        changed = damage(file.read_bytes())
        assert changed != file.read_bytes()
        file.write_bytes(changed)
    with pytest.raises(LakeError, match=text):
        Lake(str(tmp_path)).snapshot()


@pytest.mark.parametrize(("name", "text"), [("/tmp/a[1]", "a pattern"), ("what://x/y", "can't be used")])
def test_a_lake_that_can_not_be(name: str, text: str) -> None:
    with pytest.raises(LakeError, match=text):
        Lake(name)


def test_not_every_commit_has_to_be_read(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with lake.lock():
        snapshot = lake.snapshot()
        for number in range(1, 131):
            file = commits.File(f"stream=s/date=d/{number}", "s", "d", 1, 1, (number, number), (0, 0))
            removed = (f"stream=s/date=d/{number - 1}",) if number % 2 == 0 else ()
            covered = commits.Covered("b", "s", number - 1, number)
            commit = commits.Commit(
                number=number, time=1.0, kind="archive", ranges=(covered,), added=(file,), removed=removed
            )
            lake.commit(snapshot, commit)
    assert snapshot == Lake(str(tmp_path)).snapshot()
    (tmp_path / "commits/00000128.all.json").write_bytes(b"{")  # then the one before it helps
    for number in range(1, 65):
        (tmp_path / f"commits/{number:08d}.json").unlink()
    assert snapshot == Lake(str(tmp_path)).snapshot() == Lake(str(tmp_path)).snapshot(Lake(str(tmp_path)).snapshot())
    assert (len(snapshot.files), len(snapshot.leaving), snapshot.end(("b", "s"))) == (65, 65, 130)


def test_compaction_keeps_every_row(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    for _ in range(4):
        publish(bus, name, 25)
        once(spark, bus, name, tmp_path)
    before, old = lakes.rows(tmp_path), lakes.on_disk(tmp_path)
    (done,) = compact(spark, str(tmp_path))
    assert (done.stream, done.before, done.after, done.rows) == (name, 4, 1, 300)
    assert lakes.rows(tmp_path) == before
    (file,) = lakes.named(tmp_path)
    assert set(lakes.on_disk(tmp_path)) == {*old, file}  # the old ones stay for who reads them
    sorted_rows = lakes.pq.ParquetFile(file).read(["topic", "sequence"]).to_pylist()
    assert sorted_rows == sorted(sorted_rows, key=lambda row: (row["topic"], row["sequence"]))
    publish(bus, name, 5)
    once(spark, bus, name, tmp_path, grace="0s")
    whole(bus, name, tmp_path)
    assert compact(spark, str(tmp_path), below=1, grace="10m") == []


def test_compaction_that_would_lose_a_row_is_refused(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        publish(bus, name, 10)
        once(spark, bus, name, tmp_path)
    from pyspark.sql.classic.dataframe import DataFrame

    monkeypatch.setattr(DataFrame, "sortWithinPartitions", lambda frame, *_: frame.limit(59))
    with pytest.raises(LakeError, match="made 59 rows with 59 keys from 60 rows with 60 keys"):
        compact(spark, str(tmp_path))
    monkeypatch.undo()
    whole(bus, name, tmp_path)


def test_what_expired_before_it_was_archived(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 100)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 500)
    first = bus.forget(name, 300)
    assert first > 300
    with pytest.raises(
        DataLoss, match=rf"{first - 300} messages of the stream '{name}'.*the offsets 300 to {first - 1}"
    ):
        once(spark, bus, name, tmp_path)
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


def test_what_is_damaged_is_told(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 200)
    bucket = sorted((bus.folder / "streams" / name / "log").glob("*.log"))[1]
    content = bytearray(bucket.read_bytes())
    content[len(content) // 2] ^= 1
    bucket.write_bytes(content)
    with pytest.raises(DataLoss, match=f"messages of the stream '{name}'.*are lost.*--skip-lost"):
        once(spark, bus, name, tmp_path, "path")
    other = f"s{next(NUMBERS)}"
    bus.stream(other)
    publish(bus, other, 5, topics=1)
    both = {"streams": [name, other], "once": True, "fail_on_data_loss": False}
    done = archive(spark, str(tmp_path), path=str(bus.folder), **both)  # type: ignore[arg-type]
    assert 555 < done.rows < 605
    assert done.damaged == (name,)
    (covered,) = [one for one in lakes.commits(tmp_path)[-1]["ranges"] if one["stream"] == name]
    assert (covered["begin"], covered["end"], covered["damaged"]) == (0, 600, True)


def test_a_last_commit_that_is_lost_takes_no_message_with_it(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path
) -> None:
    publish(bus, name, 100)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 500)
    once(spark, bus, name, tmp_path)
    assert bus.forget(name, 300) > 300
    before, files = lakes.rows(tmp_path), lakes.on_disk(tmp_path)
    last = tmp_path / "commits/00000002.json"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(
        DataLoss, match=r"the offsets 300 to .* if commits/00000002.json was lost, restore it from a backup"
    ):
        once(spark, bus, name, tmp_path)
    assert lakes.on_disk(tmp_path) == files
    last.write_bytes(content)
    assert once(spark, bus, name, tmp_path).number == 0
    assert lakes.rows(tmp_path) == before
    last.unlink()
    done = once(spark, bus, name, tmp_path, fail_on_data_loss=False)  # then it is set aside
    assert (done.number, done.lost + done.rows) == (2, 1500)
    (aside,) = (tmp_path / "aside").rglob("*.parquet")
    assert aside.name in {file.name for file in files}


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
    assert once(spark, bus, name, tmp_path).number == 0
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
    """Small files are put together meanwhile."""
    monkeypatch.setattr("busway.spark.lake.archive._MANY", 4)
    stop, seen = threading.Event(), list[Progress]()

    def progress(one: Progress) -> None:
        seen.append(one)
        if len(seen) < 6:
            publish(bus, name, 2, topics=1)
        else:
            stop.set()

    archive(
        spark, str(tmp_path), url=bus.url, streams=[name], interval="1ms", stop=stop, progress=progress, compact_below=1 << 20,
        grace=0.0,
    )  # fmt: skip
    assert sum(one.rows for one in seen) == 10
    assert [commit["kind"] for commit in lakes.commits(tmp_path)].count("compact") == 1
    once(spark, bus, name, tmp_path, grace=0.0)
    whole(bus, name, tmp_path)


def test_a_lake_has_one_choice_of_topics(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    publish(bus, name, 10)
    bus.bus.publish_many(f"{name}/1,2", [b"comma"] * 4, durable=True)
    lake, topic = tmp_path / "lake", f"{name}/1,2"
    assert once(spark, bus, name, lake, topics=[topic]).rows == 4
    assert {row["topic"] for row in lakes.rows(lake)} == {topic}
    assert bus.bus.channels(name) == []  # the other topics are not archived
    assert once(spark, bus, name, tmp_path / "named", topics=[topic], channel="mine").rows == 4
    assert {one.name: one.floor for one in bus.bus.channels(name)} == {"mine": 34}
    with pytest.raises(LakeError, match=rf"archives the topics {topic}, not \*\*"):
        once(spark, bus, name, lake)


def test_rows_that_come_from_two_brokers_are_there_once(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from mirrors: rows of a broker that is not the one that was asked."""
    frame = Archiver._frame

    def mirrored(self: Archiver, covered: object) -> object:
        from pyspark.sql import functions

        own = frame(self, covered).withColumn("broker", functions.lit("f" * 32))  # type: ignore[arg-type]
        return own.union(own.where("offset % 3 = 0"))

    monkeypatch.setattr(Archiver, "_frame", mirrored)
    publish(bus, name, 20)
    assert once(spark, bus, name, tmp_path).rows == 60
    publish(bus, name, 20)

    def everything(self: Archiver, covered: list[commits.Covered]) -> object:
        (one,) = covered
        return mirrored(self, [commits.Covered(one.broker, one.stream, 0, one.end)])

    monkeypatch.setattr(Archiver, "_frame", everything)
    assert once(spark, bus, name, tmp_path).rows == 60
    assert lakes.repeated(lakes.rows(tmp_path)) == []
    assert len(lakes.rows(tmp_path)) == 120


@pytest.mark.parametrize("kind", ["url", "path"])
@pytest.mark.parametrize(
    ("end", "last", "text"),
    [(1000, "", "ends at offset 6, but is archived up to 1000"), (4, "0" * 32, "at offset 3, but 0{32} is archived")],
)
def test_an_end_that_is_lost_is_told(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, end: int, last: str, text: str, kind: str
) -> None:
    """Also if other messages have its offsets by now."""
    publish(bus, name, 2)
    lake = Lake(str(tmp_path))
    covered = commits.Covered(bus.guid, name, 0, end, last=last)
    with lake.lock():
        lake.commit(
            lake.snapshot(), commits.Commit(number=1, time=0.0, kind="archive", topics=("**",), ranges=(covered,))
        )
    with pytest.raises(LakeError, match=text):
        once(spark, bus, name, tmp_path, kind)
    with pytest.raises(LakeError, match=text):
        history.partitions(read_options(bus.options(kind) | {"history": str(tmp_path), "streams": name}))
    assert json.loads((tmp_path / "lock.json").read_bytes())["pid"]
