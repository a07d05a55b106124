"""Table of a lake: the archived messages and the live messages behind them, without gaps or repeats.

The public functions are table() and sql(); `busway lake table` and `sql` call them.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from busway.spark.columns import ddl
from busway.spark.endpoints import Endpoints
from busway.spark.lake.table_log.commits import LakeError
from busway.spark.lake.table_log.folder import DATA, Lake
from busway.spark.lake.topic_filter import matching
from busway.spark.options import COLUMNS, read_options
from busway.spark.ranges import to_json


def table(
    spark: SparkSession,
    lake: str,
    *,
    url: str = "",
    path: str = "",
    streams: Sequence[str] = (),
    topics: Sequence[str] = ("**",),
    columns: Sequence[str] = COLUMNS,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the archived messages and the live messages of a bus (`url`) or data folders (`path`), if one is given.

    The table has the messages that exist at the call. `options` are further options of the source, such as
    `startingTimestamp`. Messages that are neither archived nor live raise DataLoss (option `failOnDataLoss`).
    """
    opened = Lake(lake)
    if not opened.exists():
        raise LakeError(f"{lake} is not a lake, because it has no commits: give the folder of an archive")
    given = dict(options or {}) | {name: text for name, text in (("url", url), ("path", path)) if text}
    if streams:
        given["streams"] = json.dumps(list(streams))
    given |= {"columns": json.dumps(list(columns)), "history": opened.path() if opened.local else opened.name}
    chosen = tuple(topics) != ("**",)
    if chosen:
        given["topics"] = json.dumps(list(topics))  # a pattern may have a comma
    live = {"url", "path"} & {name.lower() for name in given}
    if live and (chosen or any(name.lower().startswith(("starting", "ending")) for name in given)):
        return spark.read.format("busway").options(**given).load()
    # Spark's own Parquet reader is fastest. The source reads the rest, also messages that are archived during the read.
    snapshot = opened.snapshot()
    archived_streams = {stream for _, stream in snapshot.covered}
    for name in streams:
        if not live and name not in archived_streams:
            raise LakeError(
                f"the lake {lake} has no stream {name!r}; its streams are: {', '.join(sorted(archived_streams)) or 'none'}"
            )
    files = [file.path for file in snapshot.files.values() if not streams or file.stream in streams]
    archived = None
    if files or not live:
        rows = _parquet(spark, opened, files) if files else spark.createDataFrame([], ddl(COLUMNS))
        archived = (matching(rows, topics) if chosen else rows).select(*columns)
    if not live:
        assert archived is not None
        return archived
    ends = {place: part.end for place, part in snapshot.covered.items() if not streams or place[1] in streams}
    given["startingOffsets"] = json.dumps(to_json(ends))
    rest = spark.read.format("busway").options(**given).load()
    return rest if archived is None else archived.unionByName(rest)


def _parquet(spark: SparkSession, lake: Lake, files: Sequence[str]) -> DataFrame:
    try:
        return spark.read.schema(ddl(COLUMNS)).parquet(*(lake.uri(DATA, path) for path in files))
    except AnalysisException:
        if missing := lake.lacking(files):
            raise lake.missing(missing) from None
        raise


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
        else:
            given = dict(options) | ({"streams": json.dumps(streams)} if streams else {})
            rows = spark.read.format("busway").options(**given).load()
        rows.createOrReplaceTempView(view)
    return spark.sql(query)
