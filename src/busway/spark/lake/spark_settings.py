"""Spark settings of the lake, in a separate session beside the user's. Archive and compaction call it."""

from typing import Final

from pyspark.sql import SparkSession

_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",  # dates in UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's default type has no statistics
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # with fewer every task sorts its rows by stream and date
    "spark.sql.sources.partitionOverwriteMode": "static",
}


def own(spark: SparkSession) -> SparkSession:
    """Return a new session with these settings in the same Spark application."""
    session = spark.newSession()
    for key, value in _CONF.items():
        session.conf.set(key, value)
    return session
