"""`busway lake sql`, in the session of the tests."""

import asyncio
import csv
import io
import json
from itertools import count
from types import SimpleNamespace

import msgspec
import polars as pl
import pytest
from typer.testing import CliRunner

import busway
from busway.cli.app import app
from busway.spark import NeedsSpark, connect, session, typed
from busway.spark.lake.archive import archive
from busway.spark.lake.delta_table import Lake
from busway.spark.lake.table import sql, views
from busway.spark.typed import declared
from tests.support.spark.bus import served

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


class Order(busway.Protocol, prefix="typed"):
    id: int
    amount: float


class NewOrder(busway.Protocol, prefix="typed"):
    id: int
    amount: float
    vip: bool = False


def test_typed_columns_are_columns_of_their_stream(spark, tmp_path):
    """Also after a field was added, for archived and for live messages."""
    with served(tmp_path / "data") as bus:
        bus.stream("typed")
        given = {"url": bus.url}
        lake = str(tmp_path / "lake")

        def ask(query, **options):
            return [tuple(row) for row in sql(spark, query, options, lake).collect()]

        bus.bus.publish_many("typed/a", [Order(id=1, amount=1.5), Order(id=2, amount=2.0)], durable=True)
        bus.bus.publish("typed/a", b"no order", durable=True)
        archive(spark, lake, url=bus.url, streams=["typed"], types=[Order], once=True)
        assert ask("SELECT sum(amount) FROM typed") == [(3.5,)]
        bus.bus.publish("typed/a", Order(id=3, amount=10.0), durable=True)
        assert ask("SELECT sum(amount), count(*), count(reason) FROM typed", **given) == [(13.5, 4, 1)]

        changed = declared(NewOrder)
        changed = msgspec.structs.replace(changed, name="Order")
        bus.bus.publish_many("typed/a", [{"id": 4, "amount": 100, "vip": True}, {"id": "x"}], durable=True)
        archive(spark, lake, url=bus.url, streams=["typed"], types=[changed], once=True)
        bus.bus.publish("typed/a", NewOrder(id=5, amount=1000.0, vip=True), durable=True)
        assert ask("SELECT sum(amount), count_if(vip) FROM typed", **given) == [(1113.5, 2)]
        assert ask("SELECT sum(amount), count_if(vip) FROM typed") == [(113.5, 1)]
        # The name of a column of all messages stays that column: id is the id of the message.
        assert ask("SELECT sum(Order.id), count_if(length(id) = 32) FROM typed") == [(10, 6)]
        assert ask("SELECT payload FROM typed WHERE reason IS NOT NULL ORDER BY offset LIMIT 1") == [(b"no order",)]
        Lake(lake).optimize()
        assert ask("SELECT sum(amount), count_if(vip) FROM typed") == [(113.5, 1)]
        assert pl.scan_delta(lake).select(pl.col("Order").struct.field("amount").sum()).collect().item() == 113.5
        wrong = msgspec.structs.replace(
            declared(NewOrder), name="Order", type=typed.Node(fields={"id": typed.Node("string")})
        )
        with pytest.raises(typed.TypeConflict, match=r"Order.id is bigint in the lake, and string"):
            archive(spark, lake, url=bus.url, streams=["typed"], types=[wrong], once=True)
        bus.bus.publish("typed/a", b"{}", durable=True)
        assert archive(spark, lake, url=bus.url, streams=["typed"], once=True).rows == 2  # the lake knows its types
