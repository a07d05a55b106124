"""One table of everything: what a lake has archived, and what is live behind that, without gap or repeat."""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from busway.spark.columns import ddl
from busway.spark.lake.commits import LakeError
from busway.spark.lake.folder import DATA, Lake
from busway.spark.options import COLUMNS
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
        given["streams"] = ",".join(streams)
    given |= {"columns": ",".join(columns), "history": opened.path() if opened.local else opened.name}
    chosen = tuple(topics) != ("**",)
    if chosen:
        given["topics"] = ",".join(topics)
    live = {"url", "path"} & {name.lower() for name in given}
    if live and (chosen or any(name.lower().startswith(("starting", "ending")) for name in given)):
        return spark.read.format("busway").options(**given).load()
    if chosen:
        raise ValueError(
            "to choose topics, give the url of the bus or the path of a data folder, too; or filter the table"
        )
    # Spark reads Parquet best by itself; the source has the rest, also what is archived meanwhile.
    snapshot = opened.snapshot()
    there = {stream for _, stream in snapshot.covered}
    for name in streams:
        if not live and name not in there:
            raise LakeError(f"the lake {lake} has no stream {name!r}; there are {', '.join(sorted(there)) or 'none'}")
    paths = [opened.uri(DATA, file.path) for file in snapshot.files.values() if not streams or file.stream in streams]
    archived = None
    if paths or not live:
        reader = spark.read.schema(ddl(COLUMNS))
        rows = reader.parquet(*paths) if paths else spark.createDataFrame([], ddl(COLUMNS))
        archived = rows.select(*columns)
    if not live:
        assert archived is not None
        return archived
    ends = {place: one.end for place, one in snapshot.covered.items() if not streams or place[1] in streams}
    given["startingOffsets"] = json.dumps(to_json(ends))
    behind = spark.read.format("busway").options(**given).load()
    return behind if archived is None else archived.unionByName(behind)
