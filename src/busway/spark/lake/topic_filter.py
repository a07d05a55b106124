"""Patterns of topics on any table that has a column `topic`."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from busway._core import Selection


def matching(df: DataFrame, patterns: Sequence[str]) -> DataFrame:
    """The rows whose topics match one of the patterns. The topics are looked at here, so there must not be very many millions."""
    known = [Selection(one, b"") for one in patterns]
    topics = (row["topic"] for row in df.select("topic").distinct().toLocalIterator())
    chosen = [(topic,) for topic in topics if any(one.covers(topic) for one in known)]
    return df.join(df.sparkSession.createDataFrame(chosen, "topic string"), "topic", "left_semi").select(*df.columns)
