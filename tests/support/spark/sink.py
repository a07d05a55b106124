"""The sink without Spark: writers, batches, and the stream that gets the rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampType

from busway import sync
from busway.message import Message
from busway.spark.sink.sink import Done, SinkMixin, StreamWriter

KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "timestamp": TimestampType(),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def table(text: str) -> StructType:
    """Spark reads such a text only with a session."""
    schema = StructType()
    for name, kind in (column.split() for column in text.split(", ")):
        schema.add(name, KINDS[kind])
    return schema


SCHEMA = table("topic string, payload string")


class Place:
    """A broker that can be stopped and started again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.more: dict[str, Any] = {}
        self.server = sync.serve("tcp://127.0.0.1:0", data=data)
        self.url = self.server.addresses[0]

    def restart(self) -> None:
        self.server.stop()
        self.server = sync.serve(self.url, data=self.data, **self.more)

    def stored(self) -> list[Message]:
        with sync.connect(self.url) as bus:
            return [message for info in bus.streams() for batch in bus.stream(info.name).read() for message in batch]

    def rows(self) -> list[tuple[str, str]]:
        return sorted((message.topic, message.text) for message in self.stored())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.server.stop()


class Breaks(Exception):  # noqa: N818 - it is the task that breaks
    """The task of a test fails."""


def context(**given: Any) -> None:
    """What Spark tells a task."""
    one: Any = TaskContext()
    told = {"partitionId": 0, "attemptNumber": 0, "taskAttemptId": 0, "stageId": 0, "localProperties": {}} | given
    for key, value in told.items():
        setattr(one, f"_{key}", value)
    TaskContext._setTaskContext(one)


def batches(given: Sequence[tuple[Any, ...]], breaks: bool = False, size: int = 10) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(given), size):
        names = ["topic", "payload", "time"][: len(given[0])]
        kinds = [pa.string(), pa.string(), pa.timestamp("us", tz="UTC")]
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*given[at : at + size], strict=True), kinds, strict=False)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=names)
    if breaks:
        raise Breaks


class Source(SinkMixin):
    def __init__(self, **options: str) -> None:
        self.options = options


def stream_writer(place: Place, schema: StructType = SCHEMA) -> StreamWriter:
    return Source(url=place.url, timeout="20").streamWriter(schema, overwrite=False)


def epoch(
    place: Place, number: int, given: Sequence[tuple[Any, ...]], run: str = "run-1", commit: bool = True, **more: Any
) -> Done:
    """One task of an epoch, in a writer of its own as Spark has it, and its commit."""
    writer = stream_writer(place)
    told = {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(number), "spark.jobGroup.id": run}
    breaks = more.pop("breaks", False)
    context(localProperties=told, **more)
    done = writer.write(batches(given, breaks))
    if commit:
        writer.commit([done], number)
    return done
