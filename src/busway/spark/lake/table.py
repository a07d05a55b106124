"""One table of everything: what a lake has archived, and what is live behind that, without gap or repeat."""

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
from busway.spark.options import COLUMNS, reading
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
    """Everything that is archived and everything that is live at the bus (`url`) or in data folders (`path`); without either the archive alone.

    It is what was there when this is called; call it again to see more. `options` are more options of the source, such as
    `startingTimestamp`. Messages that are neither archived nor live any more are an error (`failOnDataLoss`).
    """
    opened = Lake(lake)
    if not opened.exists():
        raise LakeError(f"{lake} is no lake: it has no commits")
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
    # Spark reads Parquet best by itself; the source has the rest, also what is archived meanwhile.
    snapshot = opened.snapshot()
    there = {stream for _, stream in snapshot.covered}
    for name in streams:
        if not live and name not in there:
            raise LakeError(f"the lake {lake} has no stream {name!r}; there are {', '.join(sorted(there)) or 'none'}")
    files = [file.path for file in snapshot.files.values() if not streams or file.stream in streams]
    archived = None
    if files or not live:
        rows = _parquet(spark, opened, files) if files else spark.createDataFrame([], ddl(COLUMNS))
        archived = (matching(rows, topics) if chosen else rows).select(*columns)
    if not live:
        assert archived is not None
        return archived
    ends = {place: one.end for place, one in snapshot.covered.items() if not streams or place[1] in streams}
    given["startingOffsets"] = json.dumps(to_json(ends))
    behind = spark.read.format("busway").options(**given).load()
    return behind if archived is None else archived.unionByName(behind)


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
    """The views there can be, as views() has them."""
    streams = {stream for _, stream in Lake(lake).snapshot().covered} if lake else set()
    if options or not lake:
        with Endpoints(reading(options)) as places:
            streams |= {one.stream for one in places.held()}
    return views(streams)


def views(streams: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`messages`, and one for each stream, under its name with `_` for what SQL has no use for; it doesn't mind upper and lower case.

    The value are the streams that a name can mean, none for all of them.
    """
    found: dict[str, tuple[str, ...]] = {EVERYTHING: ()}
    for stream in sorted(streams):
        view = re.sub(r"\W", "_", stream).lower()
        if view != EVERYTHING:  # that has it, too
            found[view] = (*found.get(view, ()), stream)
    return found


def sql(spark: "SparkSession", query: str, options: Mapping[str, str], lake: str | None = None) -> "DataFrame":
    """A query over the streams of a bus or folder, and over their archive if a lake is named.

    `options` are those of the source; with a lake there may be none, then its archive alone is asked. There is a view `messages`
    of everything, and one for each stream under its name.
    """
    asked = {word.lower() for word in _WORD.findall(query)}
    for view, streams in names(options, lake).items():
        if view not in asked:  # each view takes a second to make
            continue
        if len(streams) > 1:
            several = ", ".join(streams)
            raise ValueError(
                f"the table {view} could be any of the streams {several}: ask {EVERYTHING} WHERE stream = '{streams[0]}'"
            )
        if lake:
            rows = table(spark, lake, streams=streams, options=options)
        else:
            given = dict(options) | ({"streams": json.dumps(streams)} if streams else {})
            rows = spark.read.format("busway").options(**given).load()
        rows.createOrReplaceTempView(view)
    return spark.sql(query)
