"""An archive that is killed again and again, anywhere, while messages come: each message is there once."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busway.spark.lake.archive import archive
from tests.support.spark import lakes
from tests.support.spark.bus import served

ROUNDS = int(os.environ.get("ROUNDS", "5"))
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900 + 60 * ROUNDS)
def test_killed_anywhere(spark: SparkSession, tmp_path: Path) -> None:
    """ROUNDS in the environment are more of them."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    there = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token)}
    lake, chance = tmp_path / "lake", random.Random(5)
    steps = list[str]()
    with served(tmp_path / "data") as bus:
        bus.stream("orders", max_count=256, retain_until="archived")
        sent = 0
        for _ in range(ROUNDS):
            job = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.archive_job", str(lake), bus.url, "orders"],
                cwd=ROOT,
                env=os.environ | there,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert job.stdout is not None
            try:
                for _ in range(chance.randint(2, 16)):
                    bus.bus.publish_many(f"orders/{sent % 3}", [b"%d" % (sent + n) for n in range(100)], durable=True)
                    sent += 100
                    steps.append(job.stdout.readline().strip())
                assert job.poll() is None
            finally:
                job.send_signal(signal.SIGKILL)
                job.wait()
                job.stdout.close()
        archive(spark, str(lake), url=bus.url, streams=["orders"], once=True, keep=0.0)
        assert bus.forget("orders", 256) > 0
    found = lakes.rows(lake)
    assert lakes.repeated(found) == [], steps
    assert [row["payload"] for row in found] == [b"%d" % n for n in range(sent)], steps
    assert [row["offset"] for row in found] == list(range(sent))
    assert sorted(lakes.on_disk(lake)) == sorted(lakes.named(lake))
