"""Views of streams and their archive, for queries in SQL."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from busway.spark.lake.folder import Lake
from busway.spark.lake.table import table
from busway.spark.options import reading
from busway.spark.places import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING: Final = "messages"
_WORD: Final = re.compile(r"\w+")


def names(options: Mapping[str, str], lake: str | None = None) -> dict[str, str]:
    """The views there can be: `messages`, and one for each stream, under its name with `_` for what SQL has no use for.

    The value is the stream's own name, empty for all of them.
    """
    streams = {stream for _, stream in Lake(lake).snapshot().covered} if lake else set()
    if options or not lake:
        with Places(reading(options)) as places:
            streams |= {one.stream for one in places.held()}
    found = {EVERYTHING: ""}
    for stream in sorted(streams):
        found.setdefault(re.sub(r"\W", "_", stream), stream)
    return found


def sql(spark: "SparkSession", query: str, options: Mapping[str, str], lake: str | None = None) -> "DataFrame":
    """A query over the streams of a bus or folder, and over their archive if a lake is named.

    `options` are those of the source; with a lake there may be none, then its archive alone is asked. There is a view `messages`
    of everything, and one for each stream under its name.
    """
    asked = {word.lower() for word in _WORD.findall(query)}
    for view, stream in names(options, lake).items():
        if view.lower() not in asked:  # each view takes a second to make
            continue
        if lake:
            rows = table(spark, lake, streams=[stream] if stream else (), options=options)
        else:
            rows = (
                spark.read.format("busway")
                .options(**dict(options) | ({"streams": json.dumps([stream])} if stream else {}))
                .load()
            )
        rows.createOrReplaceTempView(view)
    return spark.sql(query)
