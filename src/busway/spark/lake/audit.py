"""Audit: looks for gaps, repeats, and messages with a wrong order or time. `busway lake audit` calls it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window, functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from busway.common.checks import check_count
from busway.common.durations import Duration, duration
from busway.spark.lake import block_audit

KINDS: Final = {
    "gap": "sequences that are missing between others of their topic",
    "repeat": "messages that are stored more than once, by their sequence",
    "conflict": "sequences that have several different messages",
    "offset": "messages that share an offset with another message",
    "order": "messages whose sequence is lower than the sequence before",
    "clock": "messages with an earlier time of storing than the message before",
    "early": "messages whose time of sending is long after their time of storing",
    "late": "messages whose time of sending is long before their time of storing",
}
"""The kinds of findings, in the order of a report."""
COLUMNS: Final = ("broker", "stream", "offset", "topic", "sequence", "stored", "time")
"""The columns that an audit needs."""
CONTENT: Final = ("id", "fields", "payload")
"""The columns that an audit compares for messages with the same sequence, if the table has them."""

_KEY: Final = ["broker", "stream", "topic"]
_BLOCK: Final = 1_000_000
"""Number of offsets that one task sorts, so that several tasks audit a large stream in parallel."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of messages of a topic. `topic` is empty for a problem of all topics of a stream."""

    kind: str
    broker: str
    stream: str
    topic: str
    first: int
    """The first sequence for gaps, repeats and conflicts, else the first offset."""
    last: int
    count: int
    worst: float | None = None
    """The largest deviation in seconds, for findings about times."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit."""

    messages: int
    topics: int
    """Number of topics, counted for each broker and stream."""
    counts: dict[str, int]
    """Number of problems of each kind."""
    findings: tuple[Finding, ...]
    """The first findings of each kind, limited by `most`."""

    @property
    def clean(self) -> bool:
        """True if there are no findings."""
        return not any(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {"clean": self.clean, **asdict(self)}


def audit(
    df: DataFrame,
    *,
    early: Duration | None = "1m",
    late: Duration | None = "1d",
    most: int = 100,
    block: int = _BLOCK,
) -> AuditReport:
    """Look for gaps, repeats and anomalies of order and time in a table with the columns of the source.

    Sequences count from 1 in each topic of a stream of a broker. Missing sequences at the beginning are no gap, because
    the limits of the stream removed their messages. `early` is how long after the time of storing the time of sending
    may be (the clock of the publisher is ahead). `late` is how long before the time of storing it may be: delayed and
    replayed messages keep their first time of sending. None disables a check.

    Messages with the same sequence are compared by the columns id, fields and payload, as far as the table has them.
    The report has at most `most` findings of each kind, but counts all.

    ::

        report = audit(spark.read.format("busway").option("path", "/var/lib/busway").load())
        assert report.clean, report.findings
    """
    check_count("most", most)
    check_count("block", block)
    missing = [name for name in COLUMNS if name not in df.columns]
    if missing:
        raise ValueError(f"the column {missing[0]!r} is missing; an audit needs {', '.join(COLUMNS)}")
    limits = _micros("early", early), _micros("late", late)
    buckets, blocks = _buckets(df).persist(), _blocks(df, block, *limits).persist()
    try:
        total = _total(buckets)
        found = _places(_steps(blocks), most)
        if total["holes"]:
            found += _places(_gaps(df, buckets, inside=bool(total["torn"])), most)
        if total["extra"]:
            found += _places(_repeats(df, buckets), most)
    finally:
        blocks.unpersist()
        buckets.unpersist()
    counts = dict.fromkeys(KINDS, 0) | {finding.kind: count for finding, count in found}
    order = list(KINDS)
    findings = sorted((finding for finding, _ in found), key=lambda finding: order.index(finding.kind))
    return AuditReport(total["messages"], total["topics"], counts, tuple(findings))


def _buckets(df: DataFrame) -> DataFrame:
    """Return bitmaps of the sequences of each topic. Most buckets have no holes and need no second pass."""
    sequence = f.col("sequence")
    return df.groupBy(*_KEY, f.bitmap_bucket_number(sequence).alias("bucket")).agg(
        f.count("*").alias("rows"),
        f.bitmap_count(f.bitmap_construct_agg(f.bitmap_bit_position(sequence))).alias("different"),
        f.min(sequence).alias("low"),
        f.max(sequence).alias("high"),
    )


def _total(buckets: DataFrame) -> dict[str, int]:
    """Return the totals: messages, topics, missing and repeated sequences, and buckets with holes inside."""
    topics = buckets.groupBy(*_KEY).agg(
        f.sum("rows").alias("messages"),
        (f.max("high") - f.min("low") + 1 - f.sum("different")).alias("holes"),
        f.sum(f.col("rows") - f.col("different")).alias("extra"),
        f.count_if(f.col("high") - f.col("low") + 1 > f.col("different")).alias("torn"),
    )
    sums = [f.sum(name).alias(name) for name in ("messages", "holes", "extra", "torn")]
    row = topics.agg(f.count("*").alias("topics"), *sums).first()
    assert row is not None
    return {name: value or 0 for name, value in row.asDict().items()}


def _gaps(df: DataFrame, buckets: DataFrame, *, inside: bool) -> DataFrame:
    """Return the gaps between buckets and, with `inside`, within buckets with holes. Only those rows are read again."""
    across = Window.partitionBy(*_KEY).orderBy("bucket")
    edges = buckets.select(*_KEY, f.lag("high").over(across).alias("before"), f.col("low").alias("behind"))
    if inside:
        torn = buckets.where("high - low + 1 > different").select(*_KEY, "bucket")
        rows = df.select(*_KEY, "sequence", f.bitmap_bucket_number("sequence").alias("bucket"))
        along = Window.partitionBy(*_KEY, "bucket").orderBy("sequence")
        edges = edges.unionByName(
            rows.join(torn, [*_KEY, "bucket"], "left_semi").select(
                *_KEY, f.lag("sequence").over(along).alias("before"), f.col("sequence").alias("behind")
            )
        )
    first, last = f.col("before") + 1, f.col("behind") - 1
    return edges.where("behind > before + 1").select(
        f.lit("gap").alias("kind"), *_KEY, *_found(first, last, last - first + 1)
    )


def _repeats(df: DataFrame, buckets: DataFrame) -> DataFrame:
    """Return repeats and conflicts by topic, from the buckets that have repeats."""
    double = buckets.where("rows > different").select(*_KEY, "bucket")
    rows = df.select(
        *_KEY, "sequence", f.bitmap_bucket_number("sequence").alias("bucket"), _content(df.columns).alias("content")
    )
    several = (
        rows.join(double, [*_KEY, "bucket"], "left_semi")
        .groupBy(*_KEY, "sequence")
        .agg((f.count("*") - 1).alias("extra"), (f.count_distinct("content") > 1).cast("long").alias("differ"))
        .where("extra > 0")
    )
    kinds = f.array(
        f.struct(f.lit("repeat").alias("kind"), f.col("extra").alias("count")),
        f.struct(f.lit("conflict").alias("kind"), f.col("differ").alias("count")),
    )
    each = several.select(*_KEY, "sequence", f.inline(kinds)).where("count > 0")
    return each.groupBy("kind", *_KEY).agg(*_found(f.min("sequence"), f.max("sequence"), f.sum("count")))


def _content(names: Sequence[str]) -> Column:
    """Return a hash of the content of a message. It ignores the order of fields."""
    parts = [
        f.array_sort(f.map_entries(name)) if name == "fields" else f.col(name) for name in CONTENT if name in names
    ]
    return f.xxhash64("topic", *parts)


def _blocks(df: DataFrame, block: int, early: int, late: int) -> DataFrame:
    """Return for each topic and block of offsets the first and the last message, and the problems between them."""
    rows = df.select(
        *("broker", "stream", "topic", "offset", "sequence"),
        f.unix_micros("stored").alias("stored"),
        f.unix_micros("time").alias("time"),
        f.floor(f.col("offset") / block).alias("block"),
    )

    def work(block_rows: pa.Table) -> pa.Table:
        return block_audit.look(block_rows, early, late)

    # Grouping by one number is faster than by texts. look() separates streams with the same hash.
    rows = rows.withColumn("group", f.xxhash64("broker", "stream", "block"))
    return rows.groupBy("group").applyInArrow(work, from_arrow_schema(block_audit.SCHEMA))


def _micros(name: str, length: Duration | None) -> int:
    return 1 << 62 if length is None else round(duration(name, length, none=True) * 1_000_000)


def _steps(blocks: DataFrame) -> DataFrame:
    """Return the problems within blocks, and between consecutive blocks."""
    stream = ["broker", "stream"]
    edges = blocks.select(*_KEY, "block", *(_struct(side, block_audit.EDGES).alias(side) for side in ("begin", "end")))
    ends = edges.groupBy(*stream, "block").agg(f.min("begin").alias("begin"), f.max("end").alias("end"))
    found = f.array(*(_struct(kind, block_audit.FIGURES, f.lit(kind).alias("kind")) for kind in block_audit.KINDS))
    inside = blocks.select(*_KEY, f.inline(found)).where("count > 0")
    each = inside.unionByName(_down(edges, _KEY, "order", "sequence")).unionByName(
        _down(ends.withColumn("topic", f.lit("")), stream, "clock", "stored")
    )
    # Problems of clock and offsets concern the stream, not a topic.
    topic = f.when(f.col("kind").isin("clock", "offset"), "").otherwise(f.col("topic")).alias("topic")
    return each.groupBy("kind", *stream, topic).agg(
        *_found(f.min("first"), f.max("last"), f.sum("count"), f.max("worst"))
    )


def _struct(prefix: str, names: Sequence[str], *more: Column) -> Column:
    return f.struct(*more, *(f.col(f"{prefix}_{name}").alias(name) for name in names))


def _down(edges: DataFrame, key: list[str], kind: str, value: str) -> DataFrame:
    """Return the blocks that begin with a lower value than the end of the block before."""
    across = Window.partitionBy(*key).orderBy("block")
    begin, before = f.col(f"begin.{value}"), f.lag(f"end.{value}").over(across)
    worst = before - begin if value == "stored" else None
    at = f.col("begin.offset")
    rows = edges.select(
        *_KEY, f.lit(kind).alias("kind"), (before > begin).alias("down"), *_found(at, at, f.lit(1), worst)
    )
    return rows.where("down").drop("down")


def _found(first: Column, last: Column, count: Column, worst: Column | None = None) -> tuple[Column, ...]:
    """Return the columns of a finding; `worst` in microseconds."""
    worst = f.lit(None) if worst is None else worst
    named = {"count": count, "first": first, "last": last, "worst": worst}
    return tuple(column.cast("long").alias(name) for name, column in named.items())


def _places(found: DataFrame, most: int) -> list[tuple[Finding, int]]:
    """Return the first `most` findings of each kind, each with the total number of its kind."""
    ordered = Window.partitionBy("kind").orderBy(*_KEY, "first")
    rows = found.select(
        *("kind", *_KEY, "first", "last", "count", "worst"),
        f.row_number().over(ordered).alias("place"),
        f.sum("count").over(Window.partitionBy("kind")).alias("total"),
    )
    rows = rows.where(f.col("place") <= most).orderBy("kind", "place")
    return [(_finding(row), row["total"]) for row in rows.collect()]


def _finding(row: Row) -> Finding:
    values = {name: row[name] for name in ("kind", *_KEY, "first", "last", "count")}
    return Finding(**values, worst=None if row["worst"] is None else row["worst"] / 1e6)
