"""`busway lake archive`, `table`, `optimize`, `vacuum` and `upgrade`, in the session of the tests."""

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from busway.cli.app import app
from busway.cli.lake.archive import missing
from busway.spark.lake.delta_table import Lake
from tests.support.spark import lakes
from tests.support.spark.bus import Served, served

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]  # starting Spark is part of the first test


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as bus:
        bus.stream("orders")
        yield bus


@pytest.fixture
def run(spark: SparkSession, bus: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("BUSWAY_URL", raising=False)
    monkeypatch.setenv("BUSWAY_LAKE_LAKE", str(tmp_path / "lake"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["lake", *arguments])

    return run


def test_archive_table_and_optimize(run: Callable[..., Result], bus: Served, tmp_path: Path) -> None:
    here = ("--url", bus.url)
    for begin in (0, 10):
        bus.bus.publish_many("orders/eu", [b"%d" % n for n in range(begin, begin + 10)], durable=True)
        done = run("archive", "--once", "--stream", "orders", "--optimize-below", "none", "--json", *here)
        assert (done.exit_code, json.loads(done.stdout)["rows"]) == (0, 10), done.output
        assert "archived 10 messages" in done.stderr
    bus.bus.publish("orders/us", b"live", durable=True)
    assert run("table", "--count").stdout == "20\n"
    assert run("table", "--count", *here).stdout == "21\n"
    shown = run("table", *here, "--topic", "orders/us", "--columns", "offset,payload", "--json")
    assert json.loads(shown.stdout) == {"offset": 20, "payload": "live"}
    alone = run("table", "--topic", "orders/us", "--columns", "offset", "--count")
    assert (alone.exit_code, alone.stdout) == (0, "0\n"), alone.output
    assert run("table", "--topic", "orders/eu", "--columns", "offset", "--count").stdout == "20\n"
    few = run("table", *here, "--where", "offset >= 19", "--columns", "topic,offset", "--csv")
    assert sorted(few.stdout.splitlines()) == ["orders/eu,19", "orders/us,20", "topic,offset"]
    assert run("table", *here, "--out", str(tmp_path / "out")).exit_code == 0
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in (tmp_path / "out").glob("*.parquet")) == 21
    told = json.loads(run("optimize", "--json").stdout)
    assert (told["stream"], told["before"], told["after"]) == ("orders", 2, 1)
    assert "there are no files to merge" in run("optimize").stderr
    assert "an hour or more" in run("vacuum", "--keep", "1m").stderr
    assert "deleted 2 files" in run("vacuum", "--keep", "0s", "--force").stderr
    assert run("table", "--count", *here).stdout == "21\n"
    (file,) = lakes.named(tmp_path / "lake")
    file.unlink()
    done = run("table", "--count")
    assert (done.exit_code, f"20 messages of the lake {tmp_path / 'lake'} are missing" in done.stderr) == (1, True), (
        done.output
    )
    assert "offsets 0 to 19" in done.stderr


def test_the_round_at_work_is_finished(
    run: Callable[..., Result], bus: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to end, it ends with 0 and all of the round is there."""
    bus.bus.publish_many("orders/eu", [b"x"] * 50, durable=True)
    place = Lake.place

    def told(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return place(*given)

    monkeypatch.setattr(Lake, "place", told)
    done = run("archive", "--url", bus.url, "--stream", "orders", "--every", "1ms")
    assert done.exit_code == 0, done.output
    end = bus.bus.stream("orders").info().next
    assert len(lakes.rows(tmp_path / "lake")) == end
    assert {one.name: one.floor for one in bus.bus.channels("orders")} == {"archived": end}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("archive", "--lake", "", "--once"), 2, "--lake DIR"),
        (("archive", "--every", "soon"), 2, "soon"),
        (("archive", "--once", "--stream", "nothing"), 1, "no stream 'nothing'"),
        (("table",), 1, "is not a lake"),
        (("optimize",), 1, "is not a lake"),
        (("vacuum",), 1, "is not a lake"),
        (("upgrade",), 1, "nothing to upgrade"),
        (("table", "--count", "--csv"), 2, "exclude each other"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    run: Callable[..., Result], bus: Served, arguments: tuple[str, ...], code: int, text: str
) -> None:
    more = ("--url", bus.url) if "archive" in arguments else ()
    done = run(*arguments, *more)
    assert (done.exit_code, text in done.output) == (code, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("lost", "damaged", "text"),
    [
        (0, (), ""),
        (1200, (), "; 1,200 were removed before they were archived"),
        (0, {"b", "a"}, "; damaged messages of a, b are missing"),
    ],
)
def test_what_is_missing_is_told_at_the_end(lost: int, damaged: Collection[str], text: str) -> None:
    assert missing(lost, damaged) == text
