"""The OpenAPI document: valid, whole, and true of the requests and answers of the protocol."""

import json

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from busway import _core
from busway.gateway.documents.openapi import document

DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]


def holds(name, value, schemas=SCHEMAS):
    whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    return jsonschema.Draft202012Validator(whole).is_valid(value)


@pytest.mark.parametrize("keys", [False, True])
def test_the_document_is_valid(keys):
    made = document(keys=keys, url="http://127.0.0.1:15555")
    OpenAPIV31SpecValidator(json.loads(json.dumps(made))).validate()
    for schema in made["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_every_page_and_command_of_the_door_is_described(door):
    (opened,) = door.server._doors
    routes = {resource.canonical for resource in opened._runner.app.router.resources()}
    assert routes - {"/{path}"} <= {*DOCUMENT["paths"]}
    commands = {*opened.commands._table}
    assert commands == {schema["properties"]["cmd"]["const"] for schema in SCHEMAS.values() if _is_command(schema)}
    by_url = DOCUMENT["paths"]["/"]["get"]["parameters"]
    assert commands == {*next(one["schema"]["enum"] for one in by_url if one["name"] == "cmd")}
    for form in ("Flat", "Headers"):
        named = {
            one["$ref"].rpartition("/")[2].removeprefix(form).lower() for one in SCHEMAS[f"{form}Request"]["anyOf"]
        }
        assert named == commands | {"call"}


def _is_command(schema):
    return "cmd" in schema.get("properties", {})


def test_every_operation_has_its_own_name():
    names = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(names) == len({*names})


def test_the_document_has_the_name_of_the_server_and_its_url():
    made = document(title="mine", url="http://127.0.0.1:1")
    assert (made["info"]["title"], made["info"]["version"]) == ("mine", _core.__version__)
    assert made["servers"] == [{"url": "http://127.0.0.1:1"}]


REQUESTS = [
    {"cmd": "pub", "mq": "MyMQ", "body": "hello"},
    {"cmd": "pub", "mq": "MyMQ", "body": {"a": [1]}, "id": "1", "ack": False, "topic": "a.b"},
    {"cmd": "sub", "mq": "MyMQ", "channel": "c", "window": 5},
    {"cmd": "take", "mq": "MyMQ", "channel": "c", "window": "5"},
    {
        "cmd": "create",
        "mq": "MyMQ",
        "mqType": "disk",
        "mqMask": 1,
        "channel": "c",
        "offset": 0,
        "checksum": "x",
        "topic": "t",
    },
    {"cmd": "remove", "mq": "MyMQ"},
    {"cmd": "query", "mq": "MyMQ", "channel": "c"},
    {"cmd": "ping"},
    {"cmd": "route", "recver": "x", "id": "1", "status": 200, "body": 3},
    {"cmd": "bind", "mq": "MyMQ", "body": [{"url": "/a", "mq": "MyMQ"}]},
    {"method": "plus", "params": [1, 2], "module": "example", "id": 7},
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_of_the_protocol_are_described(request_):
    assert holds("FlatRequest", request_)
    assert not holds("HeadersRequest", request_)
    renamed = {"topic": "tag" if request_.get("cmd") == "pub" else "filter", "recver": "target"}
    headers = {
        renamed.get(name, name): str(value).lower()
        for name, value in request_.items()
        if name not in {"body", "params"}
    }
    headers |= {name: request_[name] for name in ("mq", "recver", "checksum") if name in request_}
    whole = {"headers": headers, "body": request_.get("body")}
    if "method" in request_:
        whole["url"] = "/example/plus"
    elif "recver" in request_:
        headers["target"] = "x"
    assert holds("HeadersRequest", whole), whole
    assert not holds("FlatRequest", whole)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"cmd": "pub"},
        {"cmd": "sub", "mq": "a"},
        {"cmd": "dance", "mq": "a"},
        {"cmd": "create", "mq": "a", "mqType": "tape"},
        {"cmd": "take", "mq": "a", "channel": "c", "window": "many"},
        {"cmd": "pub", "mq": 5},
        {"cmd": "query", "mq": "a\x1db"},
        {"cmd": "query", "mq": "a//b"},
        {"headers": {"cmd": "pub"}},
        {"headers": {}},
        [],
    ],
)
def test_other_requests_are_not(request_):
    assert not holds("FlatRequest", request_)
    assert not holds("HeadersRequest", request_)


def test_with_keys_every_command_but_ping_needs_them():
    schemas = document(keys=True)["components"]["schemas"]
    signed = {"apiKey": "k", "signature": "s"}
    for request in REQUESTS:
        assert holds("FlatRequest", {**request, **signed}, schemas)
        assert holds("FlatRequest", request, schemas) == (request.get("cmd") == "ping")
    headed = {"headers": {"cmd": "query", "mq": "a"}}
    assert not holds("HeadersRequest", headed, schemas)
    assert holds("HeadersRequest", {"headers": headed["headers"] | signed}, schemas)


@pytest.mark.parametrize(
    ("reply", "form"),
    [
        ({"status": 200, "body": "OK, PUB (mq=A)", "id": "1"}, "FlatReply"),
        ({"status": 604, "body": [], "id": None, "mq": "A"}, "FlatReply"),
        ({"headers": {"id": "1"}, "status": 404, "body": "MQ(A) Not Found"}, "HeadersReply"),
    ],
)
def test_replies_are_of_one_form(reply, form):
    assert [name for name in ("FlatReply", "HeadersReply") if holds(name, reply)] == [form]


def test_events():
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    assert holds("Event", event | {"data": [1], "ext": 5, "subject": "a/b"})
    assert not holds("Event", event | {"Upper": "x"})
    assert not holds("Event", event | {"ext": [1]})
    assert not holds("Event", {"id": "1"})
