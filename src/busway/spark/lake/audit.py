"""Audit: looks for what a bus must not have: gaps, repeats, and messages out of order or out of time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window, functions as f

from busway.checks import check_count

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
    buckets = _buckets(df).persist()
    blocks = _blocks(df, block, early, late).persist()
    try:
        found = _sequences(df, buckets, most) + _orders(blocks, most)
        for kind, worst in (("early", early), ("late", late)):
            if worst is not None:
                found.append(_counted(blocks, kind, _KEY, most))
        total = buckets.agg(
            f.sum("rows").alias("messages"), f.count_distinct(*_KEY).alias("topics")
        ).first()
    finally:
        blocks.unpersist()
        buckets.unpersist()
    assert total is not None
    counts = dict.fromkeys(KINDS, 0) | {kind: count for kind, count, _ in found}
    order = list(KINDS)
    found.sort(key=lambda one: order.index(one[0]))
    return AuditReport(total["messages"] or 0, total["topics"], counts, tuple(one for _, _, some in found for one in some))


def _buckets(df: DataFrame) -> DataFrame:
    """What there is of each topic, in runs of sequences that a bitmap has room for: most are whole, and need no second look."""
    sequence = f.col("sequence")
    return df.groupBy(*_KEY, f.bitmap_bucket_number(sequence).alias("bucket")).agg(
        f.count("*").alias("rows"),
        f.bitmap_count(f.bitmap_construct_agg(f.bitmap_bit_position(sequence))).alias("different"),
        f.min(sequence).alias("low"),
        f.max(sequence).alias("high"),
    )


def _sequences(df: DataFrame, buckets: DataFrame, most: int) -> list[tuple[str, int, list[Finding]]]:
    """Gaps, repeats and conflicts: rows are looked at again only where a bucket says that something is wrong."""
    holes, extra, torn = _first(
        buckets.groupBy(*_KEY)
        .agg(
            (f.max("high") - f.min("low") + 1 - f.sum("different")).alias("holes"),
            f.sum(f.col("rows") - f.col("different")).alias("extra"),
            f.sum((f.col("high") - f.col("low") + 1 > f.col("different")).cast("int")).alias("torn"),
        )
        .agg(f.sum("holes"), f.sum("extra"), f.sum("torn"))
    )
    found: list[tuple[str, int, list[Finding]]] = []
    if holes:
        found.append(("gap", holes, _gaps(df, buckets, most, inside=bool(torn))))
    if extra:
        found += _repeats(df, buckets, extra, most)
    return found


def _gaps(df: DataFrame, buckets: DataFrame, most: int, *, inside: bool) -> list[Finding]:
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
    gaps = edges.where("behind > before + 1").select(
        *_KEY,
        (f.col("before") + 1).alias("first"),
        (f.col("behind") - 1).alias("last"),
        (f.col("behind") - f.col("before") - 1).alias("count"),
    )
    return _findings("gap", gaps, most)


def _repeats(df: DataFrame, buckets: DataFrame, extra: int, most: int) -> list[tuple[str, int, list[Finding]]]:
    double = buckets.where("rows > different").select(*_KEY, "bucket")
    rows = df.select(
        *_KEY, "sequence", f.bitmap_bucket_number("sequence").alias("bucket"), _content(df.columns).alias("content")
    )
    several = (
        rows.join(double, [*_KEY, "bucket"], "left_semi")
        .groupBy(*_KEY, "sequence")
        .agg((f.count("*") - 1).alias("extra"), (f.count_distinct("content") > 1).alias("conflict"))
        .where("extra > 0")
        .persist()
    )
    sequence = f.col("sequence")
    try:
        found = [("repeat", extra, _findings("repeat", _ranged(several, sequence, f.sum("extra")), most))]
        conflicts = several.where("conflict")
        if count := conflicts.count():
            found.append(("conflict", count, _findings("conflict", _ranged(conflicts, sequence, f.count("*")), most)))
        return found
    finally:
        several.unpersist()


def _content(names: Sequence[str]) -> Column:
    """A number that differs if messages do. Of fields the order doesn't matter."""
    there = [f.array_sort(f.map_entries(name)) if name == "fields" else f.col(name) for name in CONTENT if name in names]
    return f.xxhash64("topic", *there)


def _blocks(df: DataFrame, block: int, early: timedelta | None, late: timedelta | None) -> DataFrame:
    """Of each topic, so many offsets at a time: its first and last message, and what is wrong between them."""
    order = ["offset", "sequence", "stored"]
    rows = df.select(*COLUMNS, f.floor(f.col("offset") / block).alias("block"))
    stream = Window.partitionBy("broker", "stream", "block").orderBy(*order)
    topic = Window.partitionBy(*_KEY, "block").orderBy(*order)
    behind = f.unix_micros("stored") - f.unix_micros("time")
    back = f.lag(f.unix_micros("stored")).over(stream) - f.unix_micros("stored")
    rows = rows.select(
        "*",
        _if("offset", f.lag("offset").over(stream) == f.col("offset")),
        _if("clock", back > 0, back),
        _if("order", f.lag("sequence").over(topic) > f.col("sequence")),
        _if("early", f.lit(False) if early is None else -behind > _micros(early), -behind),
        _if("late", f.lit(False) if late is None else behind > _micros(late), behind),
    )
    edge = f.struct(*order)
    return rows.groupBy(*_KEY, "block").agg(
        f.min(edge).alias("begin"),
        f.max(edge).alias("end"),
        *(_wrong(kind).alias(kind) for kind in ("offset", "clock", "order", "early", "late")),
    )


def _if(kind: str, bad: Column, much: Column | None = None) -> Column:
    """Whether a message has something of this kind, and how much of it in microseconds."""
    much = f.lit(None) if much is None else much
    return f.struct(f.coalesce(bad, f.lit(False)).alias("bad"), much.cast("long").alias("much")).alias(f"is_{kind}")


def _wrong(kind: str) -> Column:
    """How many messages have it, where, and how bad it is at worst."""
    bad = f.col(f"is_{kind}.bad")
    at = f.when(bad, f.col("offset"))
    return f.struct(
        f.count_if(bad).alias("count"),
        f.min(at).alias("first"),
        f.max(at).alias("last"),
        f.max(f.when(bad, f.col(f"is_{kind}.much"))).alias("worst"),
    )


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def _orders(blocks: DataFrame, most: int) -> list[tuple[str, int, list[Finding]]]:
    """What is wrong with the order of messages: inside blocks, and from one to the next."""
    stream = ["broker", "stream"]
    ends = blocks.groupBy(*stream, "block").agg(f.min("begin").alias("begin"), f.max("end").alias("end"))
    across_topics = _steps(blocks, _KEY, "sequence").select(*_KEY, f.lit("order").alias("kind"), "found")
    across_stream = _steps(ends, stream, "stored").select(
        *stream, f.lit("").alias("topic"), f.lit("clock").alias("kind"), "found"
    )
    steps = across_topics.unionByName(across_stream)
    return [_counted(blocks, kind, by, most, steps) for kind, by in (("offset", stream), ("order", _KEY), ("clock", stream))]


def _steps(blocks: DataFrame, key: list[str], value: str) -> DataFrame:
    """Where a block begins with less than the one before ended with."""
    across = Window.partitionBy(*key).orderBy("block")
    before = f.lag(f"end.{value}").over(across)
    back = f.lag(f.unix_micros("end.stored")).over(across) - f.unix_micros("begin.stored")
    found = f.struct(
        f.lit(1).cast("long").alias("count"),
        f.col("begin.offset").alias("first"),
        f.col("begin.offset").alias("last"),
        f.when(f.lit(value == "stored"), back).alias("worst"),
    )
    return blocks.select(*key, (before > f.col(f"begin.{value}")).alias("down"), found.alias("found")).where("down")


def _counted(
    blocks: DataFrame, kind: str, key: list[str], most: int, steps: DataFrame | None = None
) -> tuple[str, int, list[Finding]]:
    """How many of a kind there are, and where."""
    there = blocks.select(*key, f.col(kind).alias("found"))
    if steps is not None:
        there = there.unionByName(steps.where(f.col("kind") == kind).select(*key, "found"))
    there = there.where("found.count > 0").groupBy(*key).agg(
        f.min("found.first").alias("first"),
        f.max("found.last").alias("last"),
        f.sum("found.count").alias("count"),
        f.max("found.worst").alias("worst"),
    )
    (count,) = _first(there.agg(f.sum("count")))
    return kind, count, _findings(kind, there, most) if count else []


def _ranged(rows: DataFrame, place: Column, count: Column) -> DataFrame:
    return rows.groupBy(*_KEY).agg(f.min(place).alias("first"), f.max(place).alias("last"), count.alias("count"))


def _findings(kind: str, rows: DataFrame, most: int) -> list[Finding]:
    if "topic" not in rows.columns:
        rows = rows.withColumn("topic", f.lit(""))
    if "worst" not in rows.columns:
        rows = rows.withColumn("worst", f.lit(None))
    rows = rows.select(*_KEY, "first", "last", "count", f.col("worst") / 1e6).orderBy(*_KEY, "first").limit(most)
    return [Finding(kind, *row) for row in rows.collect()]


def _first(rows: DataFrame) -> tuple[int, ...]:
    row = rows.first()
    assert row is not None
    return tuple(value or 0 for value in row)


