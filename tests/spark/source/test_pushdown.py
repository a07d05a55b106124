"""Why topics and times are options: Spark gives wrong rows when a source that is written in Python takes conditions itself.

When this fails, Spark has mended it, and the source can take conditions of queries.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

SWITCH = "spark.sql.python.filterPushdown.enabled"


class Numbers(DataSource):
    """Ten numbers, of which the reader leaves out those that are not asked for."""

    @classmethod
    def name(cls) -> str:
        return "ten_numbers"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: Any) -> DataSourceReader:
        return NumbersReader()


class NumbersReader(DataSourceReader):
    only: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if isinstance(one, EqualTo):
                self.only = one.value
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(10) if self.only is None or number == self.only])


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SWITCH, "true")
    yield spark
    spark.conf.unset(SWITCH)


def test_a_condition_stays_with_the_table(pushing: SparkSession) -> None:
    pushing.dataSource.register(Numbers)
    numbers = pushing.read.format("ten_numbers").load()
    assert numbers.where("number = 3").count() == 1
    assert numbers.count() == 1, "Spark is mended: it must be 10, and now it is"
