"""Errors of Spark are explained in one line."""

import pytest

from busway import errors
from busway.spark.errors import explain

STACK = "\n\tat org.apache.spark.Some.thing(Some.scala:12)\n\tat java.base/java.lang.Thread.run(Thread.java:840)"

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/lib/some.py", line 24, in read
    {}["x"]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/some.py", line 27, in read
    raise errors.Timeout("it took: too long") from e
busway.errors.Timeout: it took: too long"""

OPTION = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "/lib/options.py", line 10, in schema
    raise OptionError(text)
          ^^^^^^^^^^^^^^^^^
busway.spark.options.OptionError: the option url can't be 'x': give
an address
 SQLSTATE: 38000"""

STREAM = """[STREAM_FAILED] Query [id = 2d45, runId = 2d32] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 269, in main
  File "/lib/streaming.py", line 31, in latestOffset
    raise DataLoss(text)
busway.spark.endpoints.DataLoss: 5 messages of 'orders' are gone
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 2d45, runId = 2d32]"""

COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703; line 3 pos 7;
'Project ['nope]
+- Range (0, 3, step=1)
"""

PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
SELEC nope FROM range(3)
^^^
"""

CRASH = (
    "An error occurred while calling o92.count.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver): "
    f"org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).{STACK}\nCaused by: java.io.EOFException{STACK}"
)

AWAITED = (
    f"An error occurred while calling o9.hasNext.\n: org.apache.spark.SparkException: Exception thrown in awaitResult: {STACK}\n"
    "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed"
    f"{STACK}\nCaused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' is malformed. "
    f"SQLSTATE: 22018{STACK}"
)

CAST = """[STREAM_FAILED] Query [id = 5f86, runId = f8a7] terminated with exception: [CAST_INVALID_INPUT] The value 'x' is malformed. \
SQLSTATE: 22018
== SQL (line 5, position 8) ==
SELECT cast(payload as int) FROM STREAM orders
       ^^^^^^^^^^^^^^^^^^^^
 SQLSTATE: XXKST
=== Streaming Query ==="""

MISSING = (
    "An error occurred while calling o148.load.\n: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] "
    f"Failed to find the data source: nosuch. SQLSTATE: 42K02{STACK}"
)


@pytest.mark.parametrize(
    ("given", "text", "condition", "line"),
    [
        (OPTION, "the option url can't be 'x': give an address", "PYTHON_DATA_SOURCE_ERROR", 0),
        (STREAM, "5 messages of 'orders' are gone", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", 0),
        (
            COLUMN,
            "A column with name `nope` cannot be resolved. (line 3, column 8)",
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            3,
        ),
        (PARSE, "Syntax error at or near 'SELEC'. (line 1, column 1)", "PARSE_SYNTAX_ERROR", 1),
        (CAST, "The value 'x' is malformed. (line 5, column 8)", "CAST_INVALID_INPUT", 5),
        (CRASH, "Python worker exited unexpectedly (crashed).", "", 0),
        (AWAITED, "The value 'x' is malformed.", "CAST_INVALID_INPUT", 0),
        (MISSING, "Failed to find the data source: nosuch.", "DATA_SOURCE_NOT_FOUND", 0),
    ],
)
def test_one_line_of_many(given, text, condition, line):
    failure = explain(Exception(given))
    assert (failure.message, failure.condition, failure.line) == (text, condition, line)


def test_an_error_of_the_bus_is_itself_again():
    failure = explain(Exception(WORKER))
    assert isinstance(failure.own, errors.Timeout)
    assert failure.text == "it took: too long"


def test_an_error_of_another_kind_keeps_its_name():
    given = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    {}["x"]\nKeyError: \'x\''
    assert explain(Exception(given)).text == "KeyError: 'x'"


def test_a_lost_connection_is_one_of_the_bus():
    assert isinstance(explain(ConnectionError("tcp://127.0.0.1:1 can't be reached")).own, errors.ConnectFailed)
    text = "Traceback (most recent call last):\n  File\nConnectionError: tcp://127.0.0.1:1 can't be reached: refused"
    assert isinstance(explain(Exception(text)).own, errors.ConnectFailed)
