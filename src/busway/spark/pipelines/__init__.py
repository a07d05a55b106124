"""Sources and sinks for Spark Declarative Pipelines (`pyspark.pipelines`), beside the tables, views and flows of Spark.

In a file that `busway lake run` runs, which also says which bus is meant::

    from pyspark import pipelines as dp
    from busway.spark import pipelines as bus

    bus.source("orders", topics="orders/**", schema="id BIGINT NOT NULL, amount DOUBLE")
    bus.sink("alerts", topic="alerts")
"""

from busway.spark.pipelines.api import flow, sink, source

__all__ = ["flow", "sink", "source"]
