"""An archive in a process of its own that can be killed, in the Spark of the process that started it; tells each step on stdout.

So the tasks of a killed one may go on for a while, as on a cluster.
"""

import sys
from collections.abc import Callable
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from busway.spark.lake import archive
from busway.spark.lake.delta_table import Lake


def told(owner: Any, name: str) -> None:
    call: Callable[..., Any] = getattr(owner, name)

    def step(*given: Any, **more: Any) -> Any:
        print(f"{name} begins", flush=True)
        done = call(*given, **more)
        print(f"{name} is done", flush=True)
        return done

    setattr(owner, name, step)


def main(lake: str, url: str, stream: str) -> None:
    gateway = launch_gateway()  # the one that the environment names
    jvm: Any = gateway.jvm
    there = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    spark = SparkSession(SparkContext(gateway=gateway, jsc=there, conf=SparkConf(_jconf=there.getConf())))
    for owner, names in (
        (archive.Archiver, ("_write", "_move_channels")),
        (Lake, ("place", "commit", "optimize", "vacuum")),
    ):
        for name in names:
            told(owner, name)
    archive.archive(spark, lake, url=url, streams=[stream], interval=0.0, optimize_below=1 << 20, keep=0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
