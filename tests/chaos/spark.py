"""A streaming query from a bus into a bus, and an archive of both, killed again and again while publishers run: `python -m tests.chaos.spark ROUNDS`.

Each round kills the whole Spark application (driver, JVM and, with them, the workers) without warning at a moment of its own
choice. The archive merges its files (OPTIMIZE) and deletes old ones (VACUUM) meanwhile. In the end a plain client counts the sink's stream,
and Polars and DuckDB the archive: what was published is there, each message once; and an audit finds nothing.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import polars as pl
from deltalake import DeltaTable

from busway import sync

PATIENCE: Final = 900.0
_EACH: Final = 10
_PAUSE: Final = 0.05
"""A few hundred messages a second: what the query has to catch up with in the end must not be too much."""


class Publishers:
    """Threads that store numbered messages until they are stopped."""

    def __init__(self, url: str, count: int = 2) -> None:
        self.published: list[str] = []
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f"p{number}",)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str) -> None:
        with sync.connect(self._url) as bus:
            number = 0
            while not self._stop.wait(_PAUSE):
                some = [f"{name} {number + more}" for more in range(_EACH)]
                bus.publish_many("in", some, durable=True)
                self.published += some
                number += _EACH


@contextmanager
def job(folder: Path, url: str, what: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Spark application of its own, with a process group that is killed in the end."""
    arguments = [sys.executable, "-m", "tests.support.spark.sink_job", str(folder), url, what]
    with subprocess.Popen(arguments, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(condition: Callable[[], object], process: "subprocess.Popen[bytes]") -> None:
    """Wait for what a job does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the job has ended by itself"
        assert time.monotonic() < end, "the job does not come on"
        time.sleep(0.1)


def crash(rounds: int, folder: Path, seed: int, tell: Callable[[str], None] = print) -> None:
    """Kill a query so often; raises AssertionError if something is lost or stored twice."""
    chance = random.Random(seed)
    with sync.serve("tcp://127.0.0.1:0", data=folder / "data") as server:
        url = server.addresses[0]
        with sync.connect(url) as bus:
            bus.create_stream("in", ["in"])
            out = bus.create_stream("out", ["out/*"], once="1s")
            publishers = Publishers(url)
            try:
                for number in range(rounds):
                    before = out.info().next
                    with job(folder, url, "follow") as process:
                        until(lambda before=before: out.info().next > before, process)  # type: ignore[misc]
                        time.sleep(chance.uniform(0, 2))
                        kill(process)
                    tell(f"round {number + 1}: {len(publishers.published)} published, {out.info().next} in the sink")
            finally:
                publishers.stop()
            with job(folder, url, "drain") as process:
                assert process.wait(PATIENCE) == 0
            found = Counter(message.text for batch in out.read() for message in batch)
    compare("the sink", publishers.published, found, tell)
    operations = Counter(entry["operation"] for entry in DeltaTable(folder / "lake").history())
    tell(", ".join(f"{count} {name}" for name, count in sorted(operations.items())))
    rows = DeltaTable(folder / "lake").to_pyarrow_dataset()  # of the name that DuckDB's query has
    for stream in ("in", "out"):
        chosen = pl.scan_delta(folder / "lake").filter(pl.col("stream") == stream)
        polars_rows = Counter(payload.decode() for payload in chosen.select("payload").collect()["payload"])
        compare(f"the archive of {stream!r} in Polars", publishers.published, polars_rows, tell)
        found = duckdb.execute("SELECT payload FROM rows WHERE stream = ?", [stream]).fetchall()
        duckdb_rows = Counter(payload.decode() for (payload,) in found)
        compare(f"the archive of {stream!r} in DuckDB", publishers.published, duckdb_rows, tell)
    del rows


def compare(where: str, published: list[str], found: Counter[str], tell: Callable[[str], None]) -> None:
    lost, twice = Counter(published) - found, found - Counter(published)
    tell(f"{where}: {len(published)} published, {found.total()} there, {lost.total()} lost, {twice.total()} too many")
    assert not lost, where
    assert not twice, where


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"{rounds} rounds, seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        crash(rounds, Path(folder), seed)


if __name__ == "__main__":
    main()
