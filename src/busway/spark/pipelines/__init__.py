"""Sources and sinks of Busway for Spark Declarative Pipelines (`pyspark.pipelines`).

Use them in a file for `busway lake run`, whose flags name the bus::

    from pyspark import pipelines as dp
    from busway.spark import pipelines as bus

    bus.source("orders", topics="orders/**", schema="id BIGINT NOT NULL, amount DOUBLE")
    bus.sink("alerts", topic="alerts")
"""

from busway.spark.pipelines.api import flow, sink, source

__all__ = ["flow", "sink", "source"]
