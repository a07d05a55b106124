"""The OpenAPI 3.1 document of the HTTP port, built from the table in operations.py. Values only.

`http/routes.py` serves it at `/openapi.json`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from busway import _core
from busway.gateway.documents.operations import (
    ANY,
    CALL,
    COMMANDS,
    COMMON,
    IDENT,
    OPERATIONS,
    TEXT,
    Answer,
    Command,
    Field,
    Operation,
)

_ABOUT: Final = (
    "Queues, services and publish/subscribe over HTTP. Commands are JSON objects in one of two forms: flat, or with "
    "their control fields in a member `headers`; a WebSocket at any path takes the same. In the second form control "
    "fields may also be headers of the request, whose body is then the body of the command."
)
_PLAIN: Final = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"
_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_TAGS: Final = {
    "commands": "Queues and channels.",
    "services": "Calls of services, at paths.",
    "events": "CloudEvents.",
    "operation": "Health, metrics and documents.",
}


def document(*, title: str = "Busway", url: str = "/", keys: bool = False) -> dict[str, Any]:
    """The document. `keys`: every command needs `apiKey` and `signature`."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": title, "version": _core.__version__, "description": _ABOUT},
        "servers": [{"url": url}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": _schemas(keys=keys)},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    result: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.text,
        "responses": {answer.status: _answer(answer) for answer in operation.answers},
    }
    if operation.parameters:
        result["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.where,
                "required": parameter.required,
                "description": parameter.text,
                "schema": parameter.schema,
            }
            for parameter in operation.parameters
        ]
    if operation.body is not None:
        result["requestBody"] = {"required": True, "content": _content(operation.body)}
    return result


def _answer(answer: Answer) -> dict[str, Any]:
    return {"description": answer.text, "content": _content(answer.content)}


def _content(content: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in content.items()}


def _schemas(*, keys: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for command in (*COMMANDS, CALL):
        result[f"Flat{command.name.title()}"] = _flat(command, keys=keys)
        if command is not CALL:
            result[f"Headers{command.name.title()}"] = _headers(command, keys=keys)
    result["HeadersCall"] = {
        "type": "object",
        "description": f"{CALL.text} The URL names it: `/module/method`.",
        "required": ["headers", "url"],
        "properties": {
            "headers": _object(_members(COMMON, headed=True), _signature(keys=keys)),
            "url": {"type": "string", "pattern": "^/."},
            "method": TEXT,
            "body": {"description": "The list of its arguments."},
        },
    }
    names = [command.name.title() for command in (*COMMANDS, CALL)]
    for form in ("Flat", "Headers"):
        result[f"{form}Request"] = {"anyOf": [{"$ref": f"#/components/schemas/{form}{name}"} for name in names]}
    status = {"type": "integer", "minimum": 100, "maximum": 699}
    result["FlatReply"] = _object({"id": IDENT, "status": status, "body": ANY}, ["status"]) | {
        "not": {"required": ["headers"]}
    }
    result["HeadersReply"] = _object(
        {"headers": _object({"id": IDENT}, []), "status": status, "body": ANY}, ["headers", "status"]
    )
    result["Error"] = _object({"error": TEXT}, ["error"])
    result["Health"] = _object(
        {
            "status": {"enum": ["ok", "failing"]},
            "reasons": {"type": "array", "items": TEXT},
            "notes": {"type": "array", "items": TEXT},
            "lag_seconds": {"type": "number"},
        },
        ["status"],
    )
    result["Published"] = _object(
        {"published": {"type": "integer"}, "positions": {"type": "array", "items": TEXT}}, ["published"]
    )
    result["Event"] = _event()
    return result


def _flat(command: Command, *, keys: bool) -> dict[str, Any]:
    members = _members((*command.fields, *COMMON), headed=False)
    required = [field.name for field in command.fields if field.required]
    required += _signature(keys=keys and command.name != "ping")
    if command is not CALL:
        members["cmd"] = {"const": command.name}
        required.append("cmd")
    if command.body:
        members["body"] = {"description": command.body}
    return _object(members, required) | _texts(command) | {"not": {"required": ["headers"]}}


def _headers(command: Command, *, keys: bool) -> dict[str, Any]:
    members = _members((*command.fields, *COMMON), headed=True) | {"cmd": {"const": command.name}}
    required = ["cmd", *(field.name_in_headers for field in command.fields if field.required)]
    required += _signature(keys=keys and command.name != "ping")
    whole: dict[str, Any] = {"headers": _object(members, required)}
    if command.body:
        whole["body"] = {"description": command.body}
    return _object(whole, ["headers"]) | _texts(command)


def _texts(command: Command) -> dict[str, Any]:
    return {"description": command.text + (f" Answered with {command.answer}." if command.answer else "")}


def _signature(*, keys: bool) -> list[str]:
    """The required members of a signed request; none if the door has no keys."""
    return ["apiKey", "signature"] if keys else []


def _members(fields: Iterable[Field], *, headed: bool) -> dict[str, Any]:
    return {
        field.name_in_headers if headed else field.name: {**field.schema, "description": field.text} for field in fields
    }


def _object(members: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "object", "properties": dict(members)}
    return {**result, "required": required} if required else result


def _event() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "pattern": _PLAIN}
    members = {
        "specversion": {"const": "1.0"},
        "id": text,
        "source": text,
        "type": text,
        "subject": {**text, "description": "The topic, if the URL has none."},
        "time": {**text, "format": "date-time"},
        "datacontenttype": text,
        "dataschema": text,
        "data": ANY,
        "data_base64": {**TEXT, "contentEncoding": "base64", "pattern": _BASE64},
    }
    whole = {"minimum": -(2**31), "maximum": 2**31 - 1}
    extension = {"type": ["string", "integer", "boolean", "null"], "pattern": _PLAIN, **whole}
    result = _object(members, ["specversion", "id", "source", "type"])
    result["not"] = {"required": ["data", "data_base64"]}
    return result | {"propertyNames": {"pattern": "^([a-z0-9]{1,64}|data_base64)$"}, "additionalProperties": extension}
