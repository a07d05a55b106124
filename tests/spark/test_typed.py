"""Typed columns: types of declarations, payloads that fit and that do not, and types that change. Without Spark."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pydantic
import pytest

import busway
from busway.spark import typed
from busway.spark.columns import arrow_schema
from busway.spark.options import COLUMNS
from busway.spark.typed import Declared, Decoder, TypeConflict, declared, evolved
from tests.support.spark.rows import row


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(busway.Protocol, prefix="orders"):
    id: int
    amount: float
    placed: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    items: list[Item] = []
    tags: dict[str, int] = {}
    state: Literal["new", "paid"] = "new"
    either: int | str = 0


class Packed(busway.Protocol, prefix="packed", encoding="msgpack"):
    raw: bytes
    number: int


class Reading(pydantic.BaseModel):
    at: datetime
    value: float | None


busway.protocol(Reading, prefix="readings")


def decoded(types: Sequence[Declared], *messages: tuple[str, bytes], columns: Sequence[str] | None = None) -> list[Any]:
    names = columns or ("offset", *typed.names(types))
    rows = [{**row(at, topic), "fields": [], "payload": payload} for at, (topic, payload) in enumerate(messages)]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(COLUMNS))
    decoder = Decoder(types, names)
    plain = pa.array([b""] * len(rows), pa.binary())  # the engine gives packed fields
    given = {name: plain if name == "fields" else batch.column(name) for name in decoder.needed}
    found = decoder.convert(pa.RecordBatch.from_arrays(list(given.values()), names=list(given)))
    assert found.schema == typed.schema(names, types)
    made: list[Any] = found.to_pylist()
    return made


def test_a_protocol_becomes_a_column() -> None:
    one = declared(Order)
    assert (one.name, one.pattern, one.encoding) == ("Order", "orders/**", "json")
    assert typed.spark_type(one.type) == (
        "struct<`id`:bigint,`amount`:double,`placed`:timestamp,`items`:array<struct<`sku`:string,`count`:bigint>>,"
        "`tags`:map<string,bigint>,`state`:string>"  # a union can't be a column
    )
    assert typed.load(typed.dump([one])) == (one,)
    assert declared("tests.spark.test_typed:Order").type == one.type
    assert typed.ddl(()) == []
    payload = json.dumps(
        {"id": 1, "amount": 2, "placed": "2026-01-31T12:00:00+01:00", "items": [{"sku": "a"}], "tags": {"x": 1}}
    )
    (found,) = decoded([one], ("orders/eu", payload.encode()))
    assert found["reason"] is None
    assert found["Order"] == {
        "id": 1,
        "amount": 2.0,
        "placed": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "items": [{"sku": "a", "count": None}],
        "tags": [("x", 1)],
        "state": None,
    }


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "Order: JSON is malformed"),
        (b"[]", "Order: Expected `object`, got `array`"),
        (b'{"id": 1}', "missing required field `amount`"),
        (b'{"id": "1", "amount": 2}', "Expected `int`, got `str` - at `$.id`"),
        (b'{"id": 99999999999999999999, "amount": 2}', "Expected `int` <= 9223372036854775807"),
        (b'{"id": 1, "amount": 2, "state": "lost"}', "Invalid enum value 'lost'"),
        (b'{"id": 1, "amount": 2, "placed": "soon"}', "at `$.placed`"),
        (b"[" * 100_000, "Order: "),
    ],
)
def test_a_payload_that_does_not_fit_has_a_reason(payload: bytes, reason: str) -> None:
    good = b'{"id": 7, "amount": 1, "more": true}'
    bad, other, fits = decoded([declared(Order)], ("orders/eu", payload), ("other", payload), ("orders/eu", good))
    assert bad["Order"] is None
    assert reason in bad["reason"]
    assert (other["Order"], other["reason"]) == (None, None)
    assert (fits["Order"]["id"], fits["reason"]) == (7, None)


def test_other_encodings_and_models() -> None:
    types = [declared(Packed), declared(Reading)]
    assert [typed.spark_type(one.type) for one in types] == [
        "struct<`raw`:binary,`number`:bigint>",
        "struct<`at`:timestamp,`value`:double>",
    ]
    packed, reading, missing = decoded(
        types,
        ("packed", busway.encode(Packed(raw=b"\x00", number=5))),
        ("readings/a", Reading(at=datetime(2026, 1, 1, tzinfo=UTC), value=None).model_dump_json().encode()),
        ("readings/a", b'{"at": "2026-01-01T00:00:00Z"}'),
    )
    assert packed["Packed"] == {"raw": b"\x00", "number": 5}
    assert reading["Reading"] == {"at": datetime(2026, 1, 1, tzinfo=UTC), "value": None}
    assert "missing required field `value`" in missing["reason"]


def test_a_json_schema_is_a_declaration(tmp_path: Path) -> None:
    file = tmp_path / "trade.schema.json"
    schema = {
        "type": "object",
        "$defs": {
            "side": {"enum": ["buy", "sell"]},
            "self": {"properties": {"x": {"$ref": "#/$defs/self"}}, "type": "object"},
        },
        "properties": {
            "price": {"type": ["number", "null"]},
            "side": {"$ref": "#/$defs/side"},
            "day": {"type": "string", "format": "date"},
            "ok": {"type": "boolean"},
            "pair": {"type": "array", "prefixItems": [{}, {}]},
            "endless": {"$ref": "#/$defs/self"},
        },
        "required": ["side"],
    }
    file.write_text(json.dumps(schema))
    one = declared(f"trades/*={file}")
    assert (one.name, one.pattern) == ("trade", "trades/*")
    assert typed.spark_type(one.type) == "struct<`price`:double,`side`:string,`day`:date,`ok`:boolean>"
    fits, wrong = decoded([one], ("trades/a", b'{"side": "buy", "price": null}'), ("trades/a", b'{"side": "up"}'))
    assert fits["trade"]["side"] == "buy"
    assert "Invalid enum value" in wrong["reason"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("tests.spark.test_typed:Nothing", "can't be imported"),
        ("nothing", "can't be imported"),
        ("a/**=none.json", "can't be read as a JSON Schema"),
        ("a/**b=offset.json", "can't have the name 'offset'"),
        ("a/b**={}", "topics of the type good can't be 'a/b**'"),
        ("a={}", "has no fields"),
    ],
)
def test_a_declaration_that_can_not_be(what: str, text: str, tmp_path: Path) -> None:
    good = {"type": "object", "properties": {"x": {"type": "integer"}}}
    (tmp_path / "offset.json").write_text(json.dumps(good))
    (tmp_path / "good.json").write_text(json.dumps(good if what.startswith("a/b") else {"type": "object"}))
    with pytest.raises(TypeConflict, match=text.replace("*", r"\*")):
        declared(what.replace("{}", str(tmp_path / "good.json")).replace("=offset", f"={tmp_path}/offset"))
    with pytest.raises(TypeError, match="is not a protocol"):
        declared(Item)


def made(**fields: dict[str, Any]) -> Declared:
    return typed._made("Order", "orders/**", "json", {"type": "object", "properties": fields, "required": list(fields)})


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def test_a_type_gains_fields_and_keeps_old_ones() -> None:
    nested = {"type": "object", "properties": {"a": INTEGER}}
    before = made(id=INTEGER, old=TEXT, inner=nested)
    now = made(id=INTEGER, vip={"type": "boolean"}, inner={"type": "object", "properties": {"b": TEXT}})
    both = evolved(before, now)
    assert typed.spark_type(both.type) == (
        "struct<`id`:bigint,`old`:string,`inner`:struct<`a`:bigint,`b`:string>,`vip`:boolean>"
    )
    assert both.type.required == ("id", "vip", "inner")
    (found,) = decoded([both], ("orders", b'{"id": 1, "vip": true, "inner": {}}'))
    assert found["Order"] == {"id": 1, "old": None, "inner": {"a": None, "b": None}, "vip": True}
    assert evolved(None, now) == now


def test_a_type_that_changes_a_field_is_refused() -> None:
    with pytest.raises(
        TypeConflict, match=r"type of Order.id is bigint in the lake, and string in its declaration.*another name"
    ):
        evolved(made(id=INTEGER), made(id=TEXT))
    listed = {"type": "array", "items": INTEGER}
    with pytest.raises(TypeConflict, match=r"Order.tags\[\] is bigint"):
        evolved(made(tags=listed), made(tags={"type": "array", "items": TEXT}))
    with pytest.raises(TypeConflict, match=r"Order.tags is array<bigint>"):
        evolved(made(tags=listed), made(tags=TEXT))
    with pytest.raises(TypeConflict, match="exists twice"):
        made(id=INTEGER, ID=INTEGER)


def test_only_the_columns_that_are_asked_for_are_decoded() -> None:
    types = [declared(Order)]
    decoder = Decoder(types, ("offset", "topic"))
    assert decoder.needed == ("offset", "topic")
    assert Decoder(types, ("offset", "Order")).needed == ("offset", "topic", "payload")
    (found,) = decoded(types, ("orders", b"x"), columns=("reason", "offset"))
    assert list(found) == ["reason", "offset"]
