"""A place that the sink writes to, without Spark."""

from tests.support.spark.sink import place

__all__ = ["place"]
