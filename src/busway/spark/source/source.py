"""The data source `busway`: makes the readers and writers. Spark calls it for reads and writes with format `busway`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from busway.spark import columns, typed
from busway.spark.endpoints import Endpoints
from busway.spark.options import OptionError, Options, read_options
from busway.spark.sink.sink import SinkMixin
from busway.spark.source import plan, tail
from busway.spark.source.stream_reader import StreamReader


class BuswaySource(SinkMixin, DataSource):
    """Reads streams of a bus or a data folder as a table, and writes a table to a bus."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options: Any = options  # Spark's mapping, which ignores upper and lower case

    @classmethod
    def name(cls) -> str:
        return "busway"

    def schema(self) -> str:
        """Return the schema. load() calls it, so that wrong options raise there."""
        options = read_options(self.options)
        return ", ".join((columns.ddl(options.columns), *typed.ddl(typed.load(options.types))))

    def reader(self, schema: StructType) -> "Reader":
        return Reader(_options(self.options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_options(self.options, schema))


class Reader(DataSourceReader):
    """A batch read: reads the messages that exist when Spark plans it."""

    def __init__(self, options: Options) -> None:
        for name, value in (
            ("maxRecordsPerTrigger", options.max_records),
            ("maxBytesPerTrigger", options.max_bytes),
            ("channel", options.channel),
        ):
            if value:
                raise OptionError(
                    f"the option {name} is for streaming queries: use readStream, or leave the option out"
                )
        self._options = options

    def partitions(self) -> list[InputPartition]:
        if self._options.behind:
            return tail.partitions(self._options)
        with Endpoints(self._options) as endpoints:
            return [plan.Task(part, endpoints.names[part.broker]) for part in plan.batch(self._options, endpoints)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark adds an empty partition to a read without partitions
            return iter(())
        if self._options.behind:
            return tail.read(self._options, partition)
        return plan.read(self._options, partition)


def _options(given: Mapping[str, str], schema: StructType) -> Options:
    """Return the options with the columns of the user's schema, or of the option columns."""
    options = read_options(given)
    return replace(options, columns=columns.chosen(schema, typed.names(typed.load(options.types))))
