"""Stats: computes rates, sizes, latencies, top topics and top senders by interval. `busway lake stats` calls it."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window, functions as f

from busway.common.checks import check_count
from busway.common.durations import Duration, duration

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS: Final = "s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?"


def length(every: Duration) -> timedelta:
    """Parse the length of an interval: any duration, or words such as `1 minute`. Raises ValueError."""
    words = re.fullmatch(rf"\s*([0-9]+(?:\.[0-9]+)?)?\s*({_WORDS})\s*", every) if isinstance(every, str) else None
    try:
        given = float(words[1] or 1) * _UNITS[words[2][0]] if words else duration("every", every)
        found = timedelta(seconds=given)
    except (ValueError, TypeError, OverflowError):
        found = timedelta(0)
    if not timedelta(milliseconds=1) <= found <= timedelta(days=366):
        raise ValueError(
            f"the length of an interval can't be {every!r}; give a length such as '1 minute', '30s' or '1h'"
        )
    return found


COLUMNS: Final = ("topic", "sender", "stored", "time", "payload")
"""The columns that stats need."""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Share:
    """The messages and bytes of one topic or sender."""

    name: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Interval:
    """The figures of an interval of storing times. Latencies are the seconds from sending to storing."""

    begin: datetime | None
    """The begin of the interval. None: the total of all intervals."""
    messages: int
    bytes: int
    topics: int
    senders: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    top_topics: tuple[Share, ...] = field(default=())
    top_senders: tuple[Share, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StatsReport:
    """All intervals with messages, in their order, and the total."""

    every: timedelta
    total: Interval
    intervals: tuple[Interval, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {**asdict(self), "every": self.every.total_seconds()}


def stats(df: DataFrame, every: Duration = "1 minute", *, top: int = 5) -> DataFrame:
    """Return rates, sizes and latencies of a table with the columns of the source, a row for each interval.

    `every` is the length of an interval: seconds, a timedelta, or text such as `1 minute`, `30s`, `1h`. Intervals divide the
    time of storing. Columns: begin, messages, bytes, rate and throughput (messages and bytes per second), topics and
    senders (their number), p50, p90, p99 and max (of stored - time, in seconds), top_topics and top_senders (arrays of
    name, messages, bytes).

    ::

        stats(spark.read.format("busway").option("path", "/var/lib/busway").load(), "1 hour").show()
    """
    width = length(every)
    totals, parts = _grouped(df, width)
    return (
        _joined(totals, parts, top)
        .where("begin is not null")
        .withColumn("begin", f.timestamp_micros("begin"))
        .withColumn("rate", f.col("messages") / width.total_seconds())
        .withColumn("throughput", f.col("bytes") / width.total_seconds())
        .select(
            *("begin", "messages", "bytes", "rate", "throughput", "topics", "senders"),
            *(*_QUANTILES, "max", "top_topics", "top_senders"),
        )
        .orderBy("begin")
    )


def stats_report(df: DataFrame, every: str | timedelta = "1 minute", *, top: int = 5) -> StatsReport:
    """Return the stats of a table as a report with all intervals and their total. page() shows it."""
    width = length(every)
    totals, parts = _grouped(df, width)
    parts = parts.persist()
    try:
        rows = [_interval(row) for row in _joined(totals, parts, top).orderBy("begin").collect()]
    finally:
        parts.unpersist()
    total = next(
        (interval for interval in rows if interval.begin is None), Interval(None, 0, 0, 0, 0, None, None, None, None)
    )
    return StatsReport(width, total, tuple(interval for interval in rows if interval.begin is not None))


def _grouped(df: DataFrame, width: timedelta) -> tuple[DataFrame, DataFrame]:
    """Group by interval, with a total whose begin is null, and by interval, topic and sender, in microseconds."""
    missing = [name for name in COLUMNS if name not in df.columns]
    if missing:
        raise ValueError(f"the column {missing[0]!r} is missing; stats need {', '.join(COLUMNS)}")
    micros, stored = width // _MICROSECOND, f.unix_micros("stored")
    rows = df.select(
        (stored - f.pmod(stored, f.lit(micros))).alias("begin"),
        "topic",
        "sender",
        f.octet_length("payload").cast("long").alias("bytes"),
        (stored - f.unix_micros("time")).alias("late"),
    )
    whole = rows.rollup("begin").agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.percentile_approx("late", list(_QUANTILES.values()), 1000).alias("quantiles"),
        (f.max("late") / 1e6).alias("max"),
    )
    whole = whole.select(
        *("begin", "messages", "bytes", "max"),
        *((f.col("quantiles")[place] / 1e6).alias(name) for place, name in enumerate(_QUANTILES)),
    )
    parts = rows.groupBy("begin", "topic", "sender").agg(f.count("*").alias("messages"), f.sum("bytes").alias("bytes"))
    return whole, parts


def _joined(whole: DataFrame, parts: DataFrame, top: int) -> DataFrame:
    check_count("top", top)
    for key in ("topic", "sender"):
        shares = _shares(parts, key, top).withColumnRenamed("begin", "shares_begin")
        whole = whole.join(shares, whole["begin"].eqNullSafe(shares["shares_begin"]), "left").drop("shares_begin")
    return whole


def _shares(parts: DataFrame, key: str, top: int) -> DataFrame:
    """Return for each interval the number of topics or senders, and the `top` largest of them."""
    # A null sender counts as a name. The null of the rollup differs by its grouping set.
    each = (
        parts.withColumn("name", f.coalesce(key, f.lit("")))
        .groupingSets([[f.col("begin"), f.col("name")], [f.col("name")]], f.col("begin"), f.col("name"))
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    )
    most: Sequence[Column] = (f.desc("messages"), f.desc("bytes"), f.asc("name"))
    share = f.struct("name", "messages", "bytes")
    return (
        each.withColumn("place", f.row_number().over(Window.partitionBy("begin").orderBy(*most)))
        .groupBy("begin")
        .agg(
            f.count("*").alias(f"{key}s"),
            f.array_sort(f.collect_list(f.when(f.col("place") <= top, f.struct("place", share.alias("share"))))).alias(
                "top"
            ),
        )
        .select("begin", f"{key}s", f.col("top.share").alias(f"top_{key}s"))
    )


def _interval(row: Row) -> Interval:
    values = row.asDict(recursive=True)
    if values["begin"] is not None:
        values["begin"] = _EPOCH + values["begin"] * _MICROSECOND
    for name in ("messages", "bytes", "topics", "senders"):
        values[name] = values[name] or 0
    for name in ("top_topics", "top_senders"):
        values[name] = tuple(Share(**share) for share in values[name] or ())
    return Interval(**values)
