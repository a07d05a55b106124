"""The data source `busway`: what Spark asks for when it reads or writes with that name."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from busway.spark import columns
from busway.spark.endpoints import Endpoints
from busway.spark.options import OptionError, Options, reading
from busway.spark.sink.sink import Writing
from busway.spark.source import history, plan
from busway.spark.source.stream_reader import StreamReader


class BuswaySource(Writing, DataSource):
    """Streams of a bus, or of a data folder, as a table; and a table into a bus."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options: Any = options  # Spark's own mapping, which doesn't mind upper and lower case

    @classmethod
    def name(cls) -> str:
        return "busway"

    def schema(self) -> str:
        """Called by load(), so what is wrong with the options is told there."""
        return columns.ddl(reading(self.options).columns)

    def reader(self, schema: StructType) -> "Reader":
        return Reader(_options(self.options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_options(self.options, schema))


class Reader(DataSourceReader):
    """Reads what is there when it is planned."""

    def __init__(self, options: Options) -> None:
        for name, given in (
            ("maxRecordsPerTrigger", options.max_records),
            ("maxBytesPerTrigger", options.max_bytes),
            ("channel", options.channel),
        ):
            if given:
                raise OptionError(f"the option {name} is for streaming queries (readStream)")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        if self._options.history:
            return history.partitions(self._options)
        with Endpoints(self._options) as places:
            return [plan.Task(one, places.names[one.broker]) for one in plan.batch(self._options, places)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes one of its own where there are none
            return iter(())
        if self._options.history:
            return history.read(self._options, partition)
        return plan.read(self._options, partition)


def _options(given: Mapping[str, str], schema: StructType) -> Options:
    """With the columns that Spark wants: those of the user's schema, or of the option."""
    return replace(reading(given), columns=columns.chosen(schema))
