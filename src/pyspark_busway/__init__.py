"""Where Spark looks for a data source: any module whose name begins with `pyspark_` and that has a DefaultSource."""

from busway.spark.source.source import BuswaySource as DefaultSource

__all__ = ["DefaultSource"]
