"""`busway lake audit`, `stats` and `replay`, in the session of the tests."""

import json

import pytest
from typer.testing import CliRunner

from busway.cli.app import app
from busway.spark.lake.archive import archive
from busway.spark.lake.replay import FIELD
from tests.support.spark.bus import served


@pytest.fixture(scope="module")
def bus(tmp_path_factory):
    with served(tmp_path_factory.mktemp("data")) as bus:
        bus.bus.create_stream("orders", ["orders/**"])
        for number in range(20):
            bus.bus.publish(f"orders/{number % 2}", b"%d" % number, durable=True)
        bus.bus.publish("log", b"started", durable=True)
        bus.bus.publish("log", b"later", durable=True, delay="1h")
        yield bus


@pytest.fixture(scope="module")
def lake(spark, bus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    archive(spark, str(folder), path=str(bus.folder), once=True)
    return folder


@pytest.fixture
def run(spark, monkeypatch, tmp_path):
    monkeypatch.delenv("BUSWAY_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["lake", *map(str, arguments)])


def test_what_a_broker_has_stored_is_clean(run, bus, lake):
    done = run("audit", "--path", bus.folder)
    assert done.exit_code == 0, done.output
    assert done.stdout == "clean: 21 messages of 3 topics\n"
    done = run("audit", "--lake", lake, "--topic", "orders/*", "--since", "1h", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["messages"] == 20


def test_what_an_audit_finds_is_shown_and_is_an_exit_status(run, bus):
    done = run("audit", "--url", bus.url, "--stream", "orders", "--late", "0s", "--content", "--most", "1")
    assert done.exit_code == 6, done.output
    head, finding, *counts, last = done.stdout.splitlines()
    assert head.split() == ["kind", "broker", "stream", "topic", "first", "last", "count", "worst"]
    assert finding.split()[:7] == ["late", bus.guid, "orders", "orders/0", "0", "18", "10"]
    assert counts == ["late: 20 messages whose time of sending is long before their time of storing"]
    assert last == "not clean: 20 messages of 2 topics"


def test_stats_as_a_table_as_json_and_as_a_page(run, bus, lake, tmp_path):
    done = run("stats", "--lake", lake, "--stream", "orders", "--until", "0s", "--every", "1d")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:2] == ["from", "messages"]
    assert rows[-1][:2] == ["all", "20"]
    assert "orders/0 10, orders/1 10" in done.stdout.splitlines()[-1]
    page = tmp_path / "page.html"
    done = run("stats", "--path", bus.folder, "--html", page, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["total"]["messages"] == 21
    assert page.read_text().startswith("<!doctype html>")
    assert "page.html: 21 messages in" in done.stderr


def test_a_replay_from_the_lake(run, bus, lake, tmp_path):
    arguments = ("--lake", lake, "--topic", "orders/**", "--where", "offset < 10", "--onto", bus.url, "--name", "again")
    done = run("replay", *arguments, "--to", "replayed/{topic}", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"name": "again", "total": 10, "done": 10, "stored": 10}
    found = [one for some in bus.bus.stream("default").read(topic="replayed/**") for one in some]
    assert [one.fields[FIELD] for one in found] == [f"{bus.guid}:{offset}:orders" for offset in range(10)]
    assert (tmp_path / ".busway/replay/again.json").is_file()
    done = run("replay", *arguments, "--to", "replayed/{topic}")
    assert "10 of 10 messages are replayed, 0 of them in this run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "--since", "yesterday"], "--since: 'yesterday' is not a time"),
        (["audit", "--late", "x"], "--late"),
        (["audit", "--topic", "a//b"], "--topic"),
        (["stats", "--every", "1 month"], "can't be '1 month'"),
        (["stats", "--html", "nowhere/page.html"], "there is no folder 'nowhere'"),
        (["replay", "--rate", "fast"], "fast"),
        (["replay", "--rate", "5/s", "--speed", "2"], "give one of the two"),
        (["replay", "--name", "a/b"], "--name"),
        (["replay", "--url", "tcp://127.0.0.1:2"], "one target"),
        (["table", "--lake", "l", "--columns", "topic,topic"], "'topic' is given twice"),
        (["table", "--lake", "l", "--topic", "a//b"], "--topic"),
    ],
)
def test_what_is_wrong_with_flags_is_told_before_spark_starts(arguments, words):
    done = CliRunner().invoke(app, ["lake", *arguments, "--url", "tcp://127.0.0.1:1"])
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_a_lake_that_is_none(run, tmp_path):
    done = run("audit", "--lake", tmp_path / "none")
    assert done.exit_code == 1
    assert "is not a lake" in done.stderr
