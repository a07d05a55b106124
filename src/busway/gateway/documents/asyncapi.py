"""The AsyncAPI 3.0 document of a bus: its streams with their topics, its services and the declared protocols.

`http/routes.py` serves it at `/asyncapi.json`. It describes the bus as one application, which receives published
messages and sends them to subscribers. Values only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from busway import _core
from busway.client.typed.codec import Codec
from busway.client.typed.protocol import Kind, kind_for

_ABOUT: Final = (
    "Topics are paths. In addresses `{part1}` stands for one segment of a topic (`*` in a pattern) and `{rest1}` for "
    "any number of segments (`**`); a regular expression has no address, so the description names it."
)
_SCHEMA: Final = "#/components/schemas/{name}"
_TYPES: Final = {"json": "application/json", "msgpack": "application/vnd.msgpack"}


def document(
    figures: Mapping[str, Any],
    *,
    services: Iterable[str] = (),
    protocols: Sequence[type] = (),
    http: str | None = None,
) -> dict[str, Any]:
    """The document of `Server.overview()`. `services` are topics of services; `http` is the URL of the HTTP port."""
    result = _Document()
    for stream in figures["streams"]:
        result.stream(stream)
    for protocol in protocols:
        result.protocol(protocol)
    for topic in sorted({*services, *(one["topic"] for one in figures["shared"])}):
        result.service(topic)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": figures["name"], "version": _core.__version__, "description": _ABOUT},
        "defaultContentType": "application/json",
        "servers": _servers(figures["addresses"], http),
        "channels": result.channels,
        "operations": result.operations,
        "components": {"messages": result.messages, "schemas": result.schemas},
    }


def _servers(addresses: Iterable[str], http: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for number, address in enumerate(addresses):
        scheme, _, rest = address.partition(":")
        host = rest.removeprefix("//")
        if scheme in {"tcp", "tls"}:
            result[f"native{number}"] = {"host": host, "protocol": "busway" if scheme == "tcp" else "busways"}
        else:
            result[f"native{number}"] = {"host": "localhost", "pathname": host, "protocol": f"busway+{scheme}"}
    if http is not None:
        host = http.partition("://")[2].rstrip("/")
        result["http"] = {"host": host, "protocol": "http", "description": "Described in /openapi.json."}
        result["ws"] = {"host": host, "protocol": "ws", "description": "JSON messages, as over HTTP."}
    return result


class _Document:
    """The parts of a document under construction."""

    def __init__(self) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}

    def stream(self, stream: Mapping[str, Any]) -> None:
        """Add the topics of a stream as AsyncAPI channels."""
        name = stream["name"]
        stored = f"Stored in {stream['store']}, for {stream['max_age']:g} s." if stream["max_age"] else "Stored."
        channels = ", ".join(channel["name"] for channel in stream["channels"])
        text = f"The stream {name}. {stored}" + (f" Channels: {channels}." if channels else "")
        # The default stream has no topics of its own: it takes messages that no other stream takes.
        for number, topic in enumerate(stream["topics"] or ["**"]):
            key = _key("stream", name) + (f".{number + 1}" if number else "")
            message = self._message(_key("message", "any"), "A message of any kind.", None, None)
            self._channel(key, topic, text, {"any": message})
            self._publish_and_subscribe(key, ["any"])

    def protocol(self, cls: type) -> None:
        """Add the topics of a protocol as an AsyncAPI channel with a schema, or as a service if it has a reply."""
        kind: Kind[Any] = kind_for(cls)
        key = _key("protocol", kind.codec.name)
        message = self._typed(kind.codec)
        text = " ".join((cls.__doc__ or "").split()) or f"Messages of the type {kind.codec.name}."
        self._channel(key, f"{kind.prefix}/**" if kind.prefix else "**", text, {kind.codec.name: message})
        if kind.reply is None:
            self._publish_and_subscribe(key, [kind.codec.name])
            return
        reply = self._typed(kind.reply)
        self.channels[f"{key}.reply"] = {"address": None, "messages": {"reply": _to("messages", reply)}}
        self._request(key, kind.codec.name, f"{key}.reply")

    def service(self, topic: str) -> None:
        """Add a service."""
        key = _key("service", topic)
        message = self._message(_key("message", "any"), "A message of any kind.", None, None)
        self._channel(key, topic, f"The service {topic}.", {"request": message})
        self.channels[f"{key}.reply"] = {"address": None, "messages": {"reply": _to("messages", message)}}
        self._request(key, "request", f"{key}.reply")

    def _channel(self, key: str, topic: str, text: str, messages: Mapping[str, str]) -> None:
        result: dict[str, Any] = {
            "description": text,
            "messages": {name: _to("messages", message) for name, message in messages.items()},
        }
        if topic.startswith("re:"):
            result |= {"address": None, "description": f"{text} Topics: {topic}"}
        else:
            result["address"], parameters = address(topic)
            if parameters:
                result["parameters"] = parameters
        self.channels[key] = result

    def _publish_and_subscribe(self, key: str, messages: Iterable[str]) -> None:
        named = [{"$ref": f"#/channels/{_escaped(key)}/messages/{_escaped(name)}"} for name in messages]
        channel = {"$ref": f"#/channels/{_escaped(key)}"}
        self.operations[f"{key}.publish"] = {"action": "receive", "channel": channel, "messages": named}
        self.operations[f"{key}.subscribe"] = {"action": "send", "channel": channel, "messages": named}

    def _request(self, key: str, message: str, reply: str) -> None:
        request_channel, reply_channel = f"#/channels/{_escaped(key)}", f"#/channels/{_escaped(reply)}"
        self.operations[f"{key}.request"] = {
            "action": "receive",
            "channel": {"$ref": request_channel},
            "messages": [{"$ref": f"{request_channel}/messages/{_escaped(message)}"}],
            "reply": {"channel": {"$ref": reply_channel}, "messages": [{"$ref": f"{reply_channel}/messages/reply"}]},
        }

    def _typed(self, codec: Codec[Any]) -> str:
        key = _key("message", codec.name)
        schema, more = schema_of(codec.type)
        self.schemas |= more
        return self._message(key, codec.name, schema, _TYPES[codec.encoding])

    def _message(self, key: str, title: str, schema: Any, kind: str | None) -> str:
        result: dict[str, Any] = {"title": title}
        if schema is not None:
            result["payload"] = schema
        if kind is not None:
            result["contentType"] = kind
        self.messages[key] = result
        return key


def schema_of(type_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of a type, and the schemas that it refers to. A type without a schema gets an empty one."""
    if hasattr(type_, "model_json_schema"):
        result: dict[str, Any] = type_.model_json_schema(ref_template=_SCHEMA.replace("name", "model"))
        more = result.pop("$defs", {})
        return result, more
    try:
        (schema,), components = msgspec.json.schema_components([type_], ref_template=_SCHEMA)
    except (TypeError, RuntimeError):
        return {"description": f"Some {getattr(type_, '__name__', type_)!s}."}, {}
    return schema, components


def address(topic: str) -> tuple[str, dict[str, Any]]:
    """The address of a topic pattern, with its parameters."""
    parameters: dict[str, Any] = {}
    parts = []
    for segment in topic.split("/"):
        if segment in {"*", "**"}:
            kind, text = ("part", "One segment.") if segment == "*" else ("rest", "Any number of segments.")
            name = f"{kind}{sum(parameter.startswith(kind) for parameter in parameters) + 1}"
            parameters[name] = {"description": text}
            parts.append(f"{{{name}}}")
        else:
            parts.append(segment)
    return "/".join(parts), parameters


def _key(kind: str, name: str) -> str:
    """A key of the document: letters, digits, `.`, `-` and `_`; any other character becomes its code point."""
    return f"{kind}.{re.sub(r'[^A-Za-z0-9-]', lambda found: f'_{ord(found[0]):x}_', name)}"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _to(kind: str, key: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{_escaped(key)}"}
