"""What a Spark task does: reads one range of offsets and gives it as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busway.spark.columns import conform
from busway.spark.options import Options
from busway.spark.places import Places
from busway.spark.ranges import Range


class Task(InputPartition):
    """One range, and what the user called the place that has it."""

    def __init__(self, part: Range, place: str) -> None:
        super().__init__(str(part))
        self.part = part
        self.place = place

    def __repr__(self) -> str:
        return f"Task({self.part})"


def read(options: Options, task: Task) -> Iterator[pa.RecordBatch]:
    """Its messages that match, with the columns and types that Spark wants."""
    columns = options.columns
    with Places(options, task.place) as places:
        for batch in places.read(task.part, options.topics, columns, fail=options.fail_on_data_loss):
            yield conform(batch, columns)
