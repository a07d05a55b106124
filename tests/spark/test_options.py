"""Options of the source: accepted values, and the errors for all others."""

from datetime import UTC, datetime

import pytest

from busway.spark.options import COLUMNS, OptionError, Options, read_options

WHERE = {"path": "data"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"TOPICS": "a/*, b/**"}, {"topics": ("a/*", "b/**")}),
        ({"topics": '["re:a{1,2}", "b/*"]'}, {"topics": ("re:a{1,2}", "b/*")}),
        ({"streams": "orders,default"}, {"streams": ("orders", "default")}),
        ({"startingOffsets": "earliest"}, {"starting": "earliest"}),
        ({"startingoffsets": '{"orders": 7}'}, {"starting": {"orders": 7}}),
        ({"endingOffsets": '{"guid": {"orders": 7}}'}, {"ending": {"guid/orders": 7}}),
        ({"startingTimestamp": "2026-01-31T12:00:00Z"}, {"starting": datetime(2026, 1, 31, 12, tzinfo=UTC)}),
        ({"startingTimestamp": "1000"}, {"starting": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}),
        ({"columns": "topic, payload"}, {"columns": ("topic", "payload")}),
        ({"failOnDataLoss": "FALSE"}, {"fail_on_data_loss": False}),
        ({"maxRecordsPerTrigger": "1_000"}, {"max_records": 1000}),
        ({"timeout": "90"}, {"timeout": 90.0}),
        ({"timeout": "1m30s"}, {"timeout": 90.0}),
    ],
)
def test_options_are_read(given: dict[str, str], wanted: dict[str, object]) -> None:
    assert read_options(WHERE | given) == Options(paths=("data",), **wanted)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "a"}, "there is no option 'topic' (did you mean 'topics'?)"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"zzz": "1"}, "there is no option 'zzz'; choose among "),
        ({"topics": "a//b"}, "the option topics can't be 'a//b'"),
        ({"topics": "[1]"}, "it is not a JSON list of texts"),
        ({"topics": " , "}, "give at least one"),
        ({"columns": "topic,payloads"}, "there is no column 'payloads' (did you mean 'payload'?)"),
        ({"startingOffsets": "soon"}, "give earliest, latest, or offsets as JSON"),
        ({"startingOffsets": '{"orders": -1}'}, "the offset of 'orders' must be a number of 0 or more, but is -1"),
        ({"startingOffsets": '{"orders": true}'}, "must be a number"),
        ({"startingTimestamp": "yesterday"}, "give a time like 2026-01-31T12:00:00Z"),
        ({"startingTimestamp": "99999999999999999999"}, "give a time like"),
        ({"maxRecordsPerTrigger": "0"}, "give a number of 1 or more"),
        ({"minPartitions": "two"}, "give a number of 1 or more"),
        ({"failOnDataLoss": "no"}, "give true or false"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1000"}, "exclude each other: give one of them"),
        ({"url": "tcp://127.0.0.1:1"}, "the source of the read is missing or ambiguous: give"),
        ({"channel": "spark"}, "the option channel needs a bus"),
        ({"timeout": "-1"}, "give a number of seconds"),
        ({"minPartitions": "_"}, "give a number of 1 or more"),
        ({"columns": "topic,topic"}, "the column 'topic' is given 2 times"),
        ({"topics": "re:e{1,2}u"}, 'put a pattern with a comma into a JSON list, ["re:a{1,2}"]'),
        ({"maxOffsetsPerTrigger": "5"}, "there is no option 'maxOffsetsPerTrigger' (here it is maxRecordsPerTrigger)"),
        ({"Subscribe": "a"}, "(here it is topics)"),
        ({"kafka.bootstrap.servers": "a:1"}, "(here it is url: tcp://HOST:PORT"),
        ({"ca": "ca.pem"}, "the option ca is for a bus behind TLS"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(WHERE | given)
    assert text in str(caught.value)


def test_somewhere_must_be_read() -> None:
    with pytest.raises(OptionError, match="give the option url"):
        read_options({})


def test_all_columns_are_there_by_default() -> None:
    assert read_options(WHERE).columns == COLUMNS
