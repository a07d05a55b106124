"""Table of a lake: the archived messages and the live messages behind them, without gaps or repeats.

The public functions are table() and sql(); `busway lake table` and `sql` call them. Spark's own Parquet reader reads the
files of a version of the Delta table, and the source reads newer messages from the bus.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as f

from busway._core import Selection, check_pattern
from busway.spark import typed
from busway.spark.columns import ddl
from busway.spark.endpoints import Endpoints
from busway.spark.lake.coverage import File, LakeError, Snapshot
from busway.spark.lake.delta_table import Lake
from busway.spark.options import COLUMNS, OptionError, read_options
from busway.spark.ranges import to_json

ALL: Final = "**"


def table(
    spark: SparkSession,
    lake: str,
    *,
    url: str = "",
    path: str = "",
    streams: Sequence[str] = (),
    topics: Sequence[str] = (ALL,),
    columns: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the archived messages and the live messages of a bus (`url`) or data folders (`path`), if one is given.

    The table has the messages that exist at the call, in the columns of the source and the typed columns of the lake.
    `since` and `until` limit the time of storing. `options` are further options of the source, such as `ca`. Messages
    that are neither archived nor live raise DataLoss, and messages that another program removed from the lake raise
    LakeError (option `failOnDataLoss`).
    """
    opened = Lake(lake)
    snapshot = opened.snapshot()
    given = dict(options or {}) | {name: text for name, text in (("url", url), ("path", path)) if text}
    if bounds := [name for name in given if name.lower().startswith(("starting", "ending"))]:
        raise OptionError(
            f"a table has no option {bounds[0]}: use since and until, or a condition of the column offset"
        )
    live = bool({"url", "path"} & {name.lower() for name in given})
    snapshot.check_unchanged(fail=not live or read_options(given).fail_on_data_loss)
    archived = {stream for _, stream in snapshot.covered}
    if not live and (unknown := [name for name in streams if name not in archived]):
        names = ", ".join(sorted(archived)) or "none"
        raise LakeError(f"the lake {lake} has no stream {unknown[0]!r}; its streams are: {names}")
    types = typed.load(snapshot.types)
    known = (*COLUMNS, *typed.names(types))
    chosen = known if columns is None else tuple(columns)
    if wrong := [name for name in chosen if name not in known]:
        raise ValueError(f"there is no column {wrong[0]!r}; choose among {', '.join(known)}")
    condition = _between(since, until)
    files = [
        file
        for file in snapshot.files
        if (not streams or file.stream in streams)
        and (since is None or file.date >= since.astimezone(UTC).date())
        and (until is None or file.date <= until.astimezone(UTC).date())
    ]
    rows = _parquet(spark, opened, files, types) if files else None
    if live:
        ends = {place: part.end for place, part in snapshot.covered.items() if not streams or place[1] in streams}
        needed = {*chosen, "stored", *(() if tuple(topics) == (ALL,) else ("topic",))}
        given |= {
            "behind": opened.path() if opened.local else opened.name,
            "startingOffsets": json.dumps(to_json(ends)),
            "topics": json.dumps(list(topics)),  # a pattern may have a comma
            "columns": json.dumps([name for name in COLUMNS if name in needed]),
            **({"streams": json.dumps(list(streams))} if streams else {}),
            **({"types": snapshot.types} if needed & set(typed.names(types)) else {}),
        }
        rest = spark.read.format("busway").options(**given).load()
        rows = rest if rows is None else rows.select(*rest.columns).unionByName(rest)
    elif rows is None:
        rows = spark.createDataFrame([], ", ".join((ddl(COLUMNS), *typed.ddl(types))))
    return matching(rows.where(condition), topics).select(*chosen)


def _between(since: datetime | None, until: datetime | None) -> Column:
    found = f.lit(True) if since is None else f.col("stored") >= f.lit(since)
    return found if until is None else found & (f.col("stored") < f.lit(until))


def _parquet(spark: SparkSession, lake: Lake, files: Sequence[File], types: Sequence[typed.Declared]) -> DataFrame:
    """Return a scan of files by Spark's Parquet reader, which prunes columns and partitions and pushes filters down."""
    schema = ", ".join((ddl(COLUMNS), *typed.ddl(types), "`date` date"))
    folders: dict[str, list[str]] = {}
    for file in files:  # a lake that was upgraded has files in a folder of their own
        folders.setdefault(file.path.rpartition("stream=")[0].rstrip("/"), []).append(lake.uri(file.path))
    try:
        frames = [
            spark.read.schema(schema).option("basePath", lake.uri(*([base] if base else []))).parquet(*uris)
            for base, uris in folders.items()
        ]
    except AnalysisException as error:
        raise (lake.lacking(files) or error) from None
    return reduce(DataFrame.unionByName, frames)


def matching(df: DataFrame, patterns: Sequence[str]) -> DataFrame:
    """Return the rows whose topics match one of the patterns."""
    if ALL in patterns:
        return df
    if not any(pattern.startswith("re:") for pattern in patterns):
        return df.where(reduce(Column.__or__, [_matches(check_pattern(pattern)) for pattern in patterns]))
    # Java has other regular expressions than the bus, so the driver matches all distinct topics.
    known = [Selection(pattern, b"") for pattern in patterns]
    topics = (row["topic"] for row in df.select("topic").distinct().toLocalIterator())
    chosen = [(topic,) for topic in topics if any(pattern.covers(topic) for pattern in known)]
    return df.join(df.sparkSession.createDataFrame(chosen, "topic string"), "topic", "left_semi").select(*df.columns)


def _matches(pattern: str) -> Column:
    """Return the condition of topics that match a pattern with wildcards. Parquet files are pruned by its beginning."""
    topic = f.col("topic")
    begin = pattern.partition("*")[0]
    if begin == pattern:
        return topic == pattern
    # Each segment with its slash, so that ** may be none.
    segments = {"*": "[^/]+/", "**": "(?:[^/]+/)*"}
    found = "".join(segments.get(part) or f"{re.escape(part)}/" for part in pattern.split("/"))
    whole = f.when(topic == "", "").otherwise(f.concat(topic, f.lit("/")))
    return topic.startswith(begin.rpartition("/")[0]) & whole.rlike(f"^{found}$")


EVERYTHING: Final = "messages"
_WORD: Final = re.compile(r"\w+")


def names(options: Mapping[str, str], lake: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the names of all possible views, as views() does."""
    streams = {stream for _, stream in Lake(lake).snapshot().covered} if lake else set()
    if options or not lake:
        with Endpoints(read_options(options)) as endpoints:
            streams |= {info.stream for info in endpoints.available()}
    return views(streams)


def views(streams: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the view `messages` and a view for each stream, by its name in lower case, with `_` for other characters.

    The value has the streams that the name may mean. It is empty for all streams.
    """
    found: dict[str, tuple[str, ...]] = {EVERYTHING: ()}
    for stream in sorted(streams):
        view = re.sub(r"\W", "_", stream).lower()
        if view != EVERYTHING:  # the view of all streams has it, too
            found[view] = (*found.get(view, ()), stream)
    return found


def sql(spark: "SparkSession", query: str, options: Mapping[str, str], lake: str | None = None) -> "DataFrame":
    """Run a query over the streams of a bus or folder, and over their archive if a lake is given.

    `options` are the options of the source. With a lake they may be empty, then only its archive is read. The query may
    use the view `messages` of all streams, and a view for each stream under its name.
    """
    used = {word.lower() for word in _WORD.findall(query)}
    for view, streams in names(options, lake).items():
        if view not in used:  # creating a view takes about a second
            continue
        if len(streams) > 1:
            candidates = ", ".join(streams)
            raise ValueError(
                f"the table {view} could be any of the streams {candidates}: ask {EVERYTHING} WHERE stream = '{streams[0]}'"
            )
        if lake:
            rows = table(spark, lake, streams=streams, options=options)
            if streams:
                rows = _with_fields(rows, Lake(lake).snapshot(), streams[0])
        else:
            given = dict(options) | ({"streams": json.dumps(streams)} if streams else {})
            rows = spark.read.format("busway").options(**given).load()
        rows.createOrReplaceTempView(view)
    return spark.sql(query)


def _with_fields(rows: DataFrame, snapshot: Snapshot, stream: str) -> DataFrame:
    """Add the fields of the typed columns of a stream as columns, unless a column has the name already."""
    fields: dict[str, list[tuple[Column, str]]] = {}
    for one in typed.load(snapshot.types):
        for name, node in one.type.fields.items() if one.name in snapshot.typed.get(stream, ()) else ():
            fields.setdefault(name.lower(), []).append(
                (f.col(f"`{one.name}`.`{name}`").alias(name), typed.spark_type(node))
            )
    taken = {name.lower() for name in rows.columns}
    added = [
        f.coalesce(*(column for column, _ in some)).alias(name)
        for name, some in fields.items()
        if name not in taken and len({kind for _, kind in some}) == 1
    ]
    return rows.select("*", *added)
