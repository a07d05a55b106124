"""`busway lake run`: a declared pipeline, from its first update over a kill to its end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from busway import sync
from busway.cli.app import app
from busway.spark.runtime import connect_server as server, connect_server_main

PATIENCE = 600.0

PIPELINE = """-- Orders come as JSON; large ones are kept, and the largest are told.
CREATE TEMPORARY VIEW orders (id BIGINT NOT NULL, amount DOUBLE)
USING busway OPTIONS (topics 'orders/**');

CREATE STREAMING TABLE large AS
SELECT topic, id, amount FROM STREAM orders WHERE amount >= 100;

CREATE MATERIALIZED VIEW totals AS
SELECT topic, count(*) AS orders, sum(amount) AS amount FROM large GROUP BY topic;

CREATE SINK alerts USING busway OPTIONS (topic 'alerts/large');

CREATE FLOW warn AS INSERT INTO alerts BY NAME
SELECT to_json(struct(id, amount)) AS payload FROM STREAM orders WHERE amount >= 190;
"""

IN_PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

from busway.spark import pipelines as bus

bus.source("raw", topics="orders/**")


@dp.table
def texts():
    return spark.readStream.table("raw").select("topic", F.col("payload").cast("string").alias("text"))
"""


class Shell:
    """`busway lake` with the pipeline's state in a folder of the test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.environment = os.environ | {"BUSWAY_URL": url, "NO_COLOR": "1", "BUSWAY_LAKE_MASTER": "local[2]"}
        self.environment["BUSWAY_LAKE_CONF"] = "spark.driver.memory=1g"

    def file(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def start(self, *words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "busway", "lake", *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.environment)

    def run(self, *words: object) -> tuple[int, str, str]:
        """In this process, as Python and PySpark take seconds to start."""
        done = CliRunner().invoke(app, ["lake", *map(str, words)], env=self.environment)
        return done.exit_code, done.stdout, done.stderr

    def update(self, file: Path, *words: object) -> dict:
        code, out, notes = self.run("run", file, "--state", self.state, "--once", "--tables", "delta", "--json", *words)
        assert code == 0, notes
        return json.loads(out)

    def table(self, name: str) -> list[dict]:
        return ds.dataset(self.state / "tables" / name, format="parquet").to_table().to_pylist()

    def delta(self, name: str) -> list[dict]:
        """The rows of a table in Delta; they are those that Spark counts to it."""
        return DeltaTable(self.state / "delta" / name).to_pyarrow_table().to_pylist()


@pytest.fixture
def bus(tmp_path):
    with (
        sync.serve("tcp://127.0.0.1:0", data=tmp_path / "data") as server,
        sync.connect(server.addresses[0]) as bus,
    ):
        yield bus


@pytest.fixture
def shell(tmp_path, bus):
    shell = Shell(tmp_path, bus.url)
    yield shell
    server.stop(shell.state)


def publish(bus: sync.Bus, numbers: range) -> None:
    for number in numbers:
        order = {"id": number, "amount": number % 200}
        bus.publish(f"orders/{number % 3}", json.dumps(order).encode(), durable=True)


def alerts(bus: sync.Bus) -> list[int]:
    batches = bus.stream("default").read(topic="alerts/large")
    return sorted(json.loads(message.payload)["id"] for batch in batches for message in batch)


def expected(count: int, least: int) -> list[int]:
    return [number for number in range(count) if number % 200 >= least]


@pytest.mark.timeout(1800)  # two servers of Spark and some dozens of Pythons are started
def test_a_pipeline_lives_through_all_that_can_happen(shell, bus):
    file = shell.file("orders.sql", PIPELINE)
    publish(bus, range(300))
    for unfit in (b"nonsense", b'{"id": "x"}', b'{"amount": 5}', b"[1]", b"", b"7"):
        bus.publish("orders/0", unfit, durable=True)

    # The first update takes what is there, and tells what doesn't fit.
    report = shell.update(file)
    assert report["rejected"] == {"orders_rejected": 6}
    assert report["rows"] == dict.fromkeys(("large", "warn", "orders_rejected"), 306)
    reasons = [row["reason"] for row in sorted(shell.table("orders_rejected"), key=lambda row: row["offset"])]
    misfit = "not an object with `id` BIGINT, `amount` DOUBLE"
    assert reasons == ["no JSON", misfit, "id is missing", misfit, "no JSON", misfit]
    assert sorted(row["id"] for row in shell.table("large")) == expected(300, 100)
    assert sum(row["orders"] for row in shell.table("totals")) == len(expected(300, 100))
    assert report["published"].keys() == {"large", "totals", "orders_rejected"}
    assert sorted(row["id"] for row in shell.delta("large")) == expected(300, 100)
    assert sum(row["orders"] for row in shell.delta("totals")) == len(expected(300, 100))
    assert len(shell.delta("orders_rejected")) == 6
    assert "large" not in shell.update(file)["published"]
    assert len(shell.delta("orders_rejected")) == 6
    assert alerts(bus) == expected(300, 190)

    # It keeps running, takes only what is new, and ends after the update at work when it is asked to.
    process = shell.start("run", file, "--state", shell.state, "--every", "100ms", "--json", "--tables", "delta")
    first = json.loads(process.stdout.readline())
    assert not any(first["rows"].values())
    publish(bus, range(300, 600))
    wait_for((shell.state / "busy").exists)
    process.send_signal(signal.SIGTERM)
    rest, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    done = [json.loads(line) for line in rest.splitlines()]
    assert done
    assert sum(one["rows"].get("large", 0) for one in done) <= 300
    assert len(shell.table("large")) > len(expected(300, 100))
    assert not (shell.state / "busy").exists()
    pid = server.find(shell.state).pid

    # Killed within an update it goes on where it was; the server, which may be at work still, is another one then.
    publish(bus, range(600, 900))
    process = shell.start("run", file, "--state", shell.state, "--once", "--tables", "delta")
    wait_for((shell.state / "busy").exists)
    process.kill()
    process.communicate()
    publish(bus, range(900, 1000))
    shell.update(file)
    assert server.find(shell.state).pid != pid
    assert sorted(row["id"] for row in shell.table("large")) == expected(1000, 100)
    assert len(shell.table("orders_rejected")) == 6
    assert alerts(bus) == expected(1000, 190)
    assert sorted(row["id"] for row in shell.delta("large")) == expected(1000, 100)
    assert sum(row["orders"] for row in shell.delta("totals")) == len(expected(1000, 100))

    # What is wrong is told with its line, and nothing else.
    wrong = shell.file("wrong.sql", PIPELINE.replace("amount >= 100", "amout >= 100"))
    code, _, notes = shell.run("run", wrong, "--state", shell.state, "--check")
    assert (code, notes.count("\n")) == (1, 1), notes
    assert notes.startswith("busway: wrong.sql, line 6: large: A column")
    wrong = shell.file("wrong.sql", PIPELINE.replace("topics 'orders/**'", "topic 'orders/**'"))
    code, _, notes = shell.run("run", wrong, "--state", shell.state, "--check")
    assert notes == "busway: wrong.sql, line 2: there is no option 'topic' (did you mean 'topics'?)\n"

    # The same in Python, on the same server.
    report = shell.update(shell.file("texts.py", IN_PYTHON))
    assert report["rows"] == {"texts": 1006}
    assert len(shell.table("texts")) == 1006

    # Nobody else may run it, and the server ends when it is told to.
    with server.use(shell.state):
        code, _, notes = shell.run("run", file, "--state", shell.state, "--once")
        assert (code, "runs already" in notes) == (1, True)
    assert shell.run("stop", shell.state)[0] == 0
    assert server.find(shell.state) is None


def wait_for(holds) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        threading.Event().wait(0.01)


def test_a_file_of_another_kind_is_refused(shell):
    code, _, notes = shell.run("run", shell.file("orders.txt", ""), "--once")
    assert (code, notes) == (1, "busway: orders.txt has another suffix: give a file with .sql or .py\n")


def test_a_server_that_nobody_uses_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(connect_server_main, "_POLL", 0.01)
    ended = threading.Event()
    with server.use(tmp_path):
        keeping = threading.Thread(target=connect_server_main._wait_until_idle, args=(tmp_path / "use", 0.0, ended))
        keeping.start()
        keeping.join(0.2)
        assert keeping.is_alive()
    keeping.join(PATIENCE)
    assert not keeping.is_alive()
