"""The settings of Spark that a lake needs, without changing those of the user's session."""

from typing import Final

from pyspark.sql import SparkSession

_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",  # dates are those of UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's usual ones have no statistics
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # or every task sorts its rows by stream and date
    "spark.sql.sources.partitionOverwriteMode": "static",
}


def own(spark: SparkSession) -> SparkSession:
    """A session beside the user's, in the same Spark."""
    session = spark.newSession()
    for key, value in _CONF.items():
        session.conf.set(key, value)
    return session
