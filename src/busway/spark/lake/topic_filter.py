"""Topic filter: applies topic patterns to a table with a column `topic`. Called by the lake and the command line."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from busway._core import Selection


def matching(df: DataFrame, patterns: Sequence[str]) -> DataFrame:
    """Return the rows whose topics match one of the patterns. The driver matches all distinct topics."""
    known = [Selection(pattern, b"") for pattern in patterns]
    topics = (row["topic"] for row in df.select("topic").distinct().toLocalIterator())
    chosen = [(topic,) for topic in topics if any(pattern.covers(topic) for pattern in known)]
    return df.join(df.sparkSession.createDataFrame(chosen, "topic string"), "topic", "left_semi").select(*df.columns)
