"""`busway lake sql`, in the session of the tests."""

import asyncio
import csv
import io
import json
from itertools import count
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import busway
from busway.cli.app import app
from busway.spark import NeedsSpark, connect, session
from busway.spark.lake.archive import archive
from busway.spark.lake.table import sql, views

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]  # starting Spark is part of the first test


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with two streams, of which one has a name that SQL has no use for."""
    path = tmp_path_factory.mktemp("data")

    async def fill() -> None:
        async with busway.serve("tcp://127.0.0.1:0", data=path) as server, server.connect() as bus:
            await bus.create_stream("orders.eu", ["orders/**"])
            for number in range(20):
                await bus.publish(f"orders/{number % 2}", b"%d" % number, durable=True, fields={"n": number})
            await bus.publish("log", b"\xff\xfe", durable=True)

    asyncio.run(fill())
    return path


@pytest.fixture
def ask(spark, folder, monkeypatch):
    monkeypatch.delenv("BUSWAY_URL", raising=False)

    def run(*arguments: str, **more):
        return CliRunner().invoke(app, ["lake", "sql", *arguments, "--path", str(folder)], **more)

    return run


def test_each_stream_is_a_table(ask):
    done = ask("SELECT topic, count(*) AS n FROM orders_eu GROUP BY topic ORDER BY topic")
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["topic", "n"],
        ["orders/0", "10"],
        ["orders/1", "10"],
    ]


def test_a_name_that_could_be_several_streams_is_no_stream_in_silence(monkeypatch):
    streams = ["orders", "a-b", "A.b", "messages"]
    assert views(streams) == {"messages": (), "orders": ("orders",), "a_b": ("A.b", "a-b")}
    monkeypatch.setattr("busway.spark.lake.table.names", lambda *_: views(streams))
    with pytest.raises(ValueError, match=r"could be any of the streams A\.b, a-b: ask messages WHERE stream = 'A\.b'"):
        sql(None, "SELECT * FROM A_b", {})


def test_json_has_everything_of_a_message(ask):
    done = ask(
        "SELECT * FROM messages WHERE topic IN ('log', 'orders/1') ORDER BY topic, sequence", "--json", "-n", "2"
    )
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["topic"], first["stream"], first["payload_base64"]) == ("log", "default", "//4=")
    assert (second["payload"], second["fields"], second["sequence"]) == ("1", {"n": "1"}, 1)
    assert second["time"].endswith("+00:00")


def test_csv_of_a_query_in_a_file(ask, tmp_path):
    (tmp_path / "query.sql").write_text("SELECT offset, payload, null AS nothing\nFROM orders_eu ORDER BY offset;\n")
    done = ask(f"@{tmp_path / 'query.sql'}", "--csv")
    assert done.exit_code == 0, done.output
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows == [["offset", "payload", "nothing"], *[[str(n), str(n), ""] for n in range(20)]]


def test_a_query_from_stdin_with_a_limit(ask):
    done = ask("-", "--limit", "3", input="SELECT offset FROM messages")
    assert len(done.stdout.splitlines()) == 4, done.output


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ("SELECT * FROM nowhere", 5, "`nowhere` cannot be found. .*the tables are messages, default, orders_eu"),
        ("SELEC 1", 5, r"Syntax error at or near 'SELEC'. \(line 1, column 1\)"),
        ("SELECT cast(cast(payload AS string) AS int) FROM messages", 1, "cannot be cast"),
        ("@nowhere.sql", 2, "nowhere.sql"),
        ("", 2, "empty"),
    ],
)
def test_a_wrong_query_is_told_in_a_line(ask, query, code, words):
    import re

    done = ask(query)
    assert done.exit_code == code, done.output
    assert re.search(words, " ".join(done.stderr.split()))
    assert "Traceback" not in done.stderr


def test_an_archive_alone_and_with_what_is_live(ask, spark, folder, tmp_path):
    lake = str(tmp_path / "lake")
    archive(spark, lake, path=str(folder), streams=["orders.eu"], once=True)
    query = "SELECT (SELECT count(*) FROM orders_eu) AS orders, (SELECT count(*) FROM messages) AS every"
    alone = CliRunner().invoke(app, ["lake", "sql", query, "--lake", lake, "--json"])
    assert json.loads(alone.stdout) == {"orders": 20, "every": 20}, alone.output
    both = ask(query, "--lake", lake, "--json")
    assert json.loads(both.stdout) == {"orders": 20, "every": 21}, both.output


def test_the_session_that_is_there_is_taken_unless_another_master_is_asked_for(spark):
    assert session().sparkContext is spark.sparkContext
    with pytest.raises(NeedsSpark, match=r"a Spark session on local\[2\], so none can start on local\[7\]"):
        session("local[7]")


def test_no_bus_there(spark, monkeypatch):
    monkeypatch.setattr(connect, "time", SimpleNamespace(monotonic=count(0, 20.0).__next__, sleep=lambda _: None))
    done = CliRunner().invoke(app, ["lake", "sql", "SELECT 1 FROM messages", "--url", "tcp://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "is a server running there?" in done.stderr


def test_a_folder_and_a_bus_at_once_are_refused(folder, monkeypatch):
    monkeypatch.delenv("BUSWAY_URL", raising=False)
    done = CliRunner().invoke(app, ["lake", "sql", "SELECT 1", "--path", str(folder), "--url", "tcp://127.0.0.1:1"])
    assert done.exit_code == 2
