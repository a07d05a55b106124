"""Sources and sinks in the SQL file of a pipeline."""

import pytest
from hypothesis import given, strategies as st

from busway.spark.pipelines.sql_declarations import Column, Flow, Mistake, Sink, Source, columns, parse

FILE = """-- one; two
CREATE TEMPORARY VIEW orders (id BIGINT NOT NULL, tags ARRAY<STRUCT<a: INT, b: STRING>>)
USING busway OPTIONS (topics 'orders/**', 'maxRecordsPerTrigger' = 1000, watermark "10 seconds");

CREATE STREAMING TABLE large AS SELECT ';' AS s FROM STREAM orders; /* ; */
create sink `my alerts` using busway options (topic 'it''s');
CREATE OR REPLACE TEMP VIEW ticks USING rate;
CREATE TEMPORARY VIEW small AS SELECT * FROM large
"""


def test_both_are_found_and_the_rest_stays_on_its_lines():
    found = parse(FILE)
    schema = "id BIGINT NOT NULL, tags ARRAY<STRUCT<a: INT, b: STRING>>"
    options = {"topics": "orders/**", "maxRecordsPerTrigger": "1000", "watermark": "10 seconds"}
    assert found.sources == [Source("orders", "busway", options, schema, 2), Source("ticks", "rate", {}, "", 7)]
    assert found.sinks == [Sink("my alerts", "busway", {"topic": "it's"}, 6)]
    lines = found.rest.splitlines()
    assert lines[4].startswith("CREATE STREAMING TABLE large")
    assert lines[7].startswith("CREATE TEMPORARY VIEW small")
    assert "orders (id" not in found.rest
    assert "SINK" not in found.rest.upper()


def test_a_file_of_ours_alone_has_no_rest():
    assert parse("CREATE SINK a USING busway; -- that is all\n").rest == ""


def test_a_flow_into_a_sink_is_a_view_and_a_flow_of_ours():
    text = """CREATE SINK Alerts USING busway;
CREATE FLOW warn
AS INSERT INTO alerts BY NAME
SELECT 1 AS payload;
CREATE FLOW fill AS INSERT INTO large BY NAME SELECT 2
"""
    found = parse(text)
    assert found.flows == [Flow("warn", "Alerts", "warn_rows")]
    lines = [line.strip() for line in found.rest.splitlines()]
    assert lines[1] == "CREATE TEMPORARY VIEW `warn_rows` AS"
    assert lines[3] == "SELECT 1 AS payload;"
    assert lines[4] == "CREATE FLOW fill AS INSERT INTO large BY NAME SELECT 2"


def test_columns_of_a_schema():
    schema = "id BIGINT NOT NULL, `the tags` ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>, x: INT"
    assert columns(schema) == [
        Column("id", "BIGINT", True),
        Column("the tags", "ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>", False),
        Column("x", "INT", False),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nCREATE SINK a", "line 2: the sink is incomplete: write CREATE SINK name USING busway"),
        ("CREATE SINK a USING", "line 1: USING needs the name"),
        ("CREATE TEMPORARY VIEW a USING busway OPTIONS topics 'a'", "OPTIONS needs a list"),
        ("CREATE TEMPORARY VIEW a USING busway OPTIONS (topics)", "the option topics can't be parsed"),
        ("CREATE TEMPORARY VIEW a USING busway OPTIONS (a 'b', A 'c')", "the option A is given twice"),
        ("CREATE TEMPORARY VIEW a USING busway OPTIONS (a 'b'", "a bracket is not closed"),
        ("CREATE TEMPORARY VIEW a USING busway WHERE x", "'WHERE' is unexpected here"),
        ("CREATE TEMPORARY VIEW a (id) USING busway", "is not a list of columns"),
        ("CREATE TEMPORARY VIEW a (id NOT NULL) USING busway", "the column 'id' has no type"),
        ("CREATE SINK a USING busway;\n\nCREATE SINK A USING busway", "line 3: 'A' is declared on line 1 already"),
    ],
)
def test_a_mistake_names_its_line(text, words):
    with pytest.raises(Mistake, match=words.replace("(", r"\(")):
        parse(text)


@given(st.text(alphabet="CREATE SINKVIEWTEMPORARYUSING ;'\"`()-/*\n,=ab1", max_size=80))
def test_any_text_is_parsed_or_refused(text):
    try:
        found = parse(text)
    except Mistake:
        return
    assert not found.rest or found.rest.count("\n") == text.count("\n")
