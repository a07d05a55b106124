"""The AsyncAPI document: its shape, that every reference leads somewhere, and that it tells what is there."""

import json
from dataclasses import dataclass

import jsonschema
import pydantic
import pytest

import busway
from busway.client.typed.protocol import declared
from busway.gateway.documents.asyncapi import address, document

REF = {
    "type": "object",
    "required": ["$ref"],
    "properties": {"$ref": {"type": "string", "pattern": "^#/"}},
    "additionalProperties": False,
}
KEY = {"pattern": r"^[A-Za-z0-9_\-.]+$"}
SHAPE = {
    "$comment": "What AsyncAPI 3.0 asks of the parts that are made here.",
    "type": "object",
    "required": ["asyncapi", "info"],
    "additionalProperties": False,
    "properties": {
        "asyncapi": {"const": "3.0.0"},
        "info": {
            "required": ["title", "version"],
            "properties": {"title": {"type": "string"}, "version": {"type": "string"}},
        },
        "defaultContentType": {"type": "string"},
        "servers": {
            "propertyNames": KEY,
            "additionalProperties": {
                "required": ["host", "protocol"],
                "properties": {name: {"type": "string"} for name in ("host", "protocol", "pathname", "description")},
                "additionalProperties": False,
            },
        },
        "channels": {
            "propertyNames": KEY,
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "address": {"type": ["string", "null"]},
                    "description": {"type": "string"},
                    "messages": {"additionalProperties": REF},
                    "parameters": {
                        "propertyNames": KEY,
                        "additionalProperties": {"properties": {"description": {"type": "string"}}},
                    },
                },
                "additionalProperties": False,
            },
        },
        "operations": {
            "propertyNames": KEY,
            "additionalProperties": {
                "required": ["action", "channel"],
                "properties": {
                    "action": {"enum": ["send", "receive"]},
                    "channel": REF,
                    "messages": {"type": "array", "items": REF},
                    "reply": {
                        "properties": {"channel": REF, "messages": {"type": "array", "items": REF}},
                        "additionalProperties": False,
                    },
                },
                "additionalProperties": False,
            },
        },
        "components": {
            "properties": {
                "messages": {
                    "propertyNames": KEY,
                    "additionalProperties": {
                        "properties": {
                            "title": {"type": "string"},
                            "contentType": {"type": "string"},
                            "payload": {"type": "object"},
                        },
                        "additionalProperties": False,
                    },
                },
                "schemas": {"propertyNames": KEY},
            },
            "additionalProperties": False,
        },
    },
}


def resolve(whole, reference):
    found = whole
    for part in reference.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def check(made):
    whole = json.loads(json.dumps(made))
    jsonschema.validate(whole, SHAPE, cls=jsonschema.Draft202012Validator)
    for reference in references(whole):
        resolve(whole, reference)
    for operation in whole["operations"].values():
        channel = operation["channel"]["$ref"]
        assert all(one["$ref"].startswith(f"{channel}/messages/") for one in operation["messages"])
    return whole


async def figures(**streams):
    async with busway.serve() as server, server.connect() as bus:
        for name, topics in streams.items():
            await bus.create_stream(name, topics=topics, store="memory")
        async with bus.serve("sum/of", lambda _: b"", shared=True):
            return server.overview()


async def test_streams_and_services():
    made = check(
        document(await figures(orders=["orders/**", "returns/*/x"]), services=["echo"], http="http://127.0.0.1:15555")
    )
    assert made["channels"]["stream.orders"]["address"] == "orders/{rest1}"
    assert made["channels"]["stream.orders.2"]["address"] == "returns/{part1}/x"
    assert made["operations"]["stream.orders.publish"]["action"] == "receive"
    assert made["operations"]["stream.orders.subscribe"]["action"] == "send"
    assert made["channels"]["service.sum_2f_of"]["address"] == "sum/of"
    assert "reply" in made["operations"]["service.echo.request"]
    assert made["servers"]["ws"] == {
        "host": "127.0.0.1:15555",
        "protocol": "ws",
        "description": "JSON messages, as over HTTP.",
    }


async def test_names_of_any_kind_make_a_document():
    made = check(document(await figures(), services=["a/b", "ż ó", "a_b", "a~1", "$x"]))
    assert made["channels"]["service.a_5f_b"]["address"] == "a_b"


class Inner(busway.Protocol):
    size: int


class Ask(busway.Protocol[int], prefix="test/ask"):
    """A question."""

    inner: Inner
    words: list[str] = []


@busway.protocol(prefix="test/plain", encoding="msgpack")
@dataclass
class Plain:
    name: str


@busway.protocol(prefix="test/model")
class Model(pydantic.BaseModel):
    class Part(pydantic.BaseModel):
        x: int

    part: Part


async def test_protocols_with_their_schemas():
    assert [cls for cls in declared() if cls.__module__ == __name__] == [Ask, Model, Plain]
    made = check(document(await figures(), protocols=[Ask, Plain, Model]))
    channel = made["channels"]["protocol.Ask"]
    assert (channel["address"], channel["description"]) == ("test/ask/{rest1}", "A question.")
    assert made["operations"]["protocol.Ask.request"]["reply"]["channel"] == {"$ref": "#/channels/protocol.Ask.reply"}
    assert made["components"]["messages"]["message.int"]["payload"] == {"type": "integer"}
    assert made["components"]["schemas"]["Inner"]["properties"] == {"size": {"type": "integer"}}
    assert made["components"]["messages"]["message.Plain"]["contentType"] == "application/vnd.msgpack"
    schemas = {"components": made["components"], **made["components"]["messages"]["message.Model"]["payload"]}
    assert jsonschema.Draft202012Validator(schemas).is_valid({"part": {"x": 1}})
    assert not jsonschema.Draft202012Validator(schemas).is_valid({"part": {"x": "a"}})


def test_a_type_without_a_schema_may_be_anything():
    @busway.protocol(prefix="odd")
    @dataclass
    class Odd:
        value: object
        call: type

    made = check(document({"name": "x", "streams": [], "shared": [], "addresses": ()}, protocols=[Odd]))
    assert "protocol.Odd.publish" in made["operations"]


@pytest.mark.parametrize(
    ("topic", "written", "parameters"),
    [
        ("a/b", "a/b", []),
        ("a/*/*/**", "a/{part1}/{part2}/{rest1}", ["part1", "part2", "rest1"]),
        ("**", "{rest1}", ["rest1"]),
    ],
)
def test_patterns_as_addresses(topic, written, parameters):
    assert (address(topic)[0], list(address(topic)[1])) == (written, parameters)
