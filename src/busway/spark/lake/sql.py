"""Views of streams and their archive, for queries in SQL."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from busway.spark.lake.folder import Lake
from busway.spark.lake.table import table
from busway.spark.options import reading
from busway.spark.places import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING: Final = "messages"
_WORD: Final = re.compile(r"\w+")


def names(options: Mapping[str, str], lake: str | None = None) -> dict[str, tuple[str, ...]]:
    """The views there can be, as views() has them."""
    streams = {stream for _, stream in Lake(lake).snapshot().covered} if lake else set()
    if options or not lake:
        with Places(reading(options)) as places:
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
