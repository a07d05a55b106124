"""Audit: looks for what a bus must not have: gaps, repeats, and messages out of order or out of time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window, functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from busway.common.checks import check_count
from busway.spark.lake import block_audit

KINDS: Final = {
    "gap": "sequences that are missing between others of their topic",
    "repeat": "messages that are there more than once, by their sequence",
    "conflict": "sequences that have several different messages",
    "offset": "messages that share an offset with another one",
    "order": "messages whose sequence is below that of the one before",
    "clock": "messages that were stored before the one before, by their time",
    "early": "messages that were sent long after they were stored, by their times",
    "late": "messages that were sent long before they were stored, by their times",
}
"""What is looked for, in the order of a report."""
COLUMNS: Final = ("broker", "stream", "offset", "topic", "sequence", "stored", "time")
"""Those that an audit needs."""
CONTENT: Final = ("id", "fields", "payload")
"""Those that it compares, of messages with the same sequence, if they are there."""

_KEY: Final = ["broker", "stream", "topic"]
_BLOCK: Final = 1_000_000
"""Offsets that one task puts in order: so a stream that has nearly everything is looked at in parallel."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with messages of a topic; or with those of all topics of a stream, then `topic` is empty."""

    kind: str
    broker: str
    stream: str
    topic: str
    first: int
    """Sequence of the first one for gaps, repeats and conflicts; else its offset."""
    last: int
    count: int
    worst: float | None = None
    """Seconds, if it is about times."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit has looked at, and found."""

    messages: int
    topics: int
    """Per broker and stream."""
    counts: dict[str, int]
    """How many of each kind there are."""
    findings: tuple[Finding, ...]
    """Which; at most so many of each kind as were asked for."""

    @property
    def clean(self) -> bool:
        return not any(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, **asdict(self)}


def audit(
    df: DataFrame,
    *,
    early: timedelta | None = timedelta(minutes=1),
    late: timedelta | None = timedelta(days=1),
    most: int = 100,
    block: int = _BLOCK,
) -> AuditReport:
    """Look for gaps, repeats and anomalies of order and time in a table with the columns of the source.

    Sequences count from 1 in each topic of a stream of a broker. What is missing at the beginning was removed by the
    stream's limits and is no gap; what is missing between others is. `early` is how much later than stored a message may say
    that it was sent (its publisher's clock is ahead), `late` how much sooner: messages that were delayed or replayed keep the
    time of when they were sent first. None: not looked at.

    Messages with the same sequence are compared by those of the columns id, fields and payload that there are. At most `most`
    findings of each kind are given; the counts are of all.

    ::

        report = audit(spark.read.format("busway").option("path", "/var/lib/busway").load())
        assert report.clean, report.findings
    """
    check_count("most", most)
    check_count("block", block)
    missing = [name for name in COLUMNS if name not in df.columns]
    if missing:
        raise ValueError(f"an audit needs the column {missing[0]!r}; it needs {', '.join(COLUMNS)}")
    buckets, looked = _buckets(df).persist(), _blocks(df, block, early, late).persist()
    try:
        total = _total(buckets)
        found = _places(_steps(looked), most)
        if total["holes"]:
            found += _places(_gaps(df, buckets, inside=bool(total["torn"])), most)
        if total["extra"]:
            found += _places(_repeats(df, buckets), most)
    finally:
        looked.unpersist()
        buckets.unpersist()
    counts = dict.fromkeys(KINDS, 0) | {one.kind: count for one, count in found}
    order = list(KINDS)
    findings = sorted((one for one, _ in found), key=lambda one: order.index(one.kind))
    return AuditReport(total["messages"], total["topics"], counts, tuple(findings))


def _buckets(df: DataFrame) -> DataFrame:
    """What there is of each topic, in runs of sequences that a bitmap has room for: most are whole, and need no second look."""
    sequence = f.col("sequence")
    return df.groupBy(*_KEY, f.bitmap_bucket_number(sequence).alias("bucket")).agg(
        f.count("*").alias("rows"),
        f.bitmap_count(f.bitmap_construct_agg(f.bitmap_bit_position(sequence))).alias("different"),
        f.min(sequence).alias("low"),
        f.max(sequence).alias("high"),
    )


def _total(buckets: DataFrame) -> dict[str, int]:
    """How much there is; how many sequences are missing or too many; and how many buckets have holes inside."""
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
    """Between buckets, and inside of those that say so: only there rows are looked at again."""
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
    """Repeats and conflicts, per topic; of buckets that have some."""
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
    """A number that differs if messages do. Of fields the order doesn't matter."""
    there = [
        f.array_sort(f.map_entries(name)) if name == "fields" else f.col(name) for name in CONTENT if name in names
    ]
    return f.xxhash64("topic", *there)


def _blocks(df: DataFrame, block: int, early: timedelta | None, late: timedelta | None) -> DataFrame:
    """Of each topic, so many offsets at a time: its first and last message, and what is wrong between them."""
    soon, old = _micros(early), _micros(late)
    rows = df.select(
        *("broker", "stream", "topic", "offset", "sequence"),
        f.unix_micros("stored").alias("stored"),
        f.unix_micros("time").alias("time"),
        f.floor(f.col("offset") / block).alias("block"),
    )

    def work(some: pa.Table) -> pa.Table:
        return block_audit.look(some, soon, old)

    # One number is quicker to group by than texts; what shares it by chance is told apart.
    rows = rows.withColumn("group", f.xxhash64("broker", "stream", "block"))
    return rows.groupBy("group").applyInArrow(work, from_arrow_schema(block_audit.SCHEMA))


def _micros(length: timedelta | None) -> int:
    return 1 << 62 if length is None else length // timedelta(microseconds=1)


def _steps(looked: DataFrame) -> DataFrame:
    """What is wrong inside blocks, and from one to the next."""
    stream = ["broker", "stream"]
    edges = looked.select(*_KEY, "block", *(_struct(side, block_audit.EDGES).alias(side) for side in ("begin", "end")))
    ends = edges.groupBy(*stream, "block").agg(f.min("begin").alias("begin"), f.max("end").alias("end"))
    found = f.array(*(_struct(kind, block_audit.FIGURES, f.lit(kind).alias("kind")) for kind in block_audit.KINDS))
    inside = looked.select(*_KEY, f.inline(found)).where("count > 0")
    each = inside.unionByName(_down(edges, _KEY, "order", "sequence")).unionByName(
        _down(ends.withColumn("topic", f.lit("")), stream, "clock", "stored")
    )
    # The clock and the offsets are those of the stream, whatever the topic.
    topic = f.when(f.col("kind").isin("clock", "offset"), "").otherwise(f.col("topic")).alias("topic")
    return each.groupBy("kind", *stream, topic).agg(
        *_found(f.min("first"), f.max("last"), f.sum("count"), f.max("worst"))
    )


def _struct(prefix: str, names: Sequence[str], *more: Column) -> Column:
    return f.struct(*more, *(f.col(f"{prefix}_{name}").alias(name) for name in names))


def _down(edges: DataFrame, key: list[str], kind: str, value: str) -> DataFrame:
    """Where a block begins with less than the one before ended with."""
    across = Window.partitionBy(*key).orderBy("block")
    begin, before = f.col(f"begin.{value}"), f.lag(f"end.{value}").over(across)
    worst = before - begin if value == "stored" else None
    at = f.col("begin.offset")
    rows = edges.select(
        *_KEY, f.lit(kind).alias("kind"), (before > begin).alias("down"), *_found(at, at, f.lit(1), worst)
    )
    return rows.where("down").drop("down")


def _found(first: Column, last: Column, count: Column, worst: Column | None = None) -> tuple[Column, ...]:
    """The columns of what was found; `worst` in microseconds."""
    worst = f.lit(None) if worst is None else worst
    named = {"count": count, "first": first, "last": last, "worst": worst}
    return tuple(column.cast("long").alias(name) for name, column in named.items())


def _places(found: DataFrame, most: int) -> list[tuple[Finding, int]]:
    """The first of each kind, and how many of the kind there are in all."""
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
