"""The same job on `local[2]` and on a cluster of real processes gives the same, also if a worker is killed while it runs."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busway import sync
from tests.support.spark import cluster_job
from tests.support.spark_cluster import Cluster, end

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 2000
PATIENCE = 600.0


@pytest.fixture
def filled(tmp_path):
    """A bus and its folder."""
    with (
        sync.serve("tcp://127.0.0.1:0", data=tmp_path / "data") as server,
        sync.connect(server.addresses[0]) as bus,
    ):
        bus.create_stream("orders", ["orders/**"])
        for number in range(MESSAGES):
            bus.publish(f"orders/{number % 4}", b"x" * (number % 50), durable=True)
        yield bus, tmp_path / "data"


@pytest.mark.timeout(1500)
def test_a_cluster_gives_the_same_even_if_a_worker_is_killed(spark, filled, tmp_path):
    bus, data = filled
    local = cluster_job.count(cluster_job.read(spark, path=str(data)))
    each = MESSAGES // 4
    lengths = [sum(number % 50 for number in range(MESSAGES) if number % 4 == topic) for topic in range(4)]
    assert local == [[f"orders/{topic}", each, lengths[topic], each, each] for topic in range(4)]
    cluster_job.write(spark, bus.url, "counts/local")

    with Cluster(tmp_path) as cluster, (tmp_path / "driver.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.spark.cluster_job", cluster.url, data, bus.url, tmp_path]
        job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        try:
            # Each worker has one core: two tasks that wait are on both of them.
            wait_for(lambda: len(list(tmp_path.glob("runs-*"))) == 2 or job.poll() is not None)
            end(cluster.workers[0])
            (tmp_path / "go").touch()
            out, _ = job.communicate(timeout=PATIENCE)
        finally:
            job.kill()
            job.wait()
        submitted = submit(cluster, bus.url, tmp_path)
    assert job.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert list(tmp_path.glob("runs-*-1")), "no task was run again"
    assert json.loads(out) == {"path": local, "url": local, "killed": local}

    assert submitted == "".join(f"orders/{topic} {each}\n" for topic in range(4))
    written = {topic: sorted(payloads(bus, topic)) for topic in ("counts/local", "counts/cluster")}
    assert written["counts/cluster"] == written["counts/local"]
    assert len(written["counts/local"]) == 4


def submit(cluster: Cluster, url: str, folder: Path) -> str:
    """The job of the page, with the worker that is left; what it prints."""
    page = (ROOT / "docs/howto/spark-cluster.md").read_text()
    found = re.search(r'^```py title="job.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    (folder / "job.py").write_text(found[1])
    program = Path(sys.executable).with_name("spark-submit")
    conf = [word for key, value in cluster_job.CONF.items() for word in ("--conf", f"{key}={value}")]
    environment = os.environ | {"BUSWAY_URL": url}
    command = [program, "--master", cluster.url, *conf, folder / "job.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def payloads(bus: sync.Bus, topic: str) -> list[bytes]:
    return [message.payload for batch in bus.stream("default").read(topic=topic) for message in batch]


def wait_for(holds) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)
