"""The AsyncAPI 3.0 document of a bus: its streams with their topics, its services, and the protocols that are declared. Values only.

It tells of the bus as one application: it receives what is published, and sends that to who subscribed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from busway import _core
from busway.client.typed.codec import Codec
from busway.client.typed.protocol import Kind, kind_for

_ABOUT: Final = (
    "Topics are paths. In addresses `{part1}` stands for one fragment of a topic (`*` in a pattern) and `{rest1}` for any number of "
    "them (`**`); a regular expression has no address, and is told in the description."
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
    """The document of `Server.overview()`. `services` are topics that are served; `http` is the address of the HTTP face."""
    made = _Document()
    for stream in figures["streams"]:
        made.stream(stream)
    for protocol in protocols:
        made.protocol(protocol)
    for topic in sorted({*services, *(one["topic"] for one in figures["shared"])}):
        made.service(topic)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": figures["name"], "version": _core.__version__, "description": _ABOUT},
        "defaultContentType": "application/json",
        "servers": _servers(figures["addresses"], http),
        "channels": made.channels,
        "operations": made.operations,
        "components": {"messages": made.messages, "schemas": made.schemas},
    }


def _servers(addresses: Iterable[str], http: str | None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for number, address in enumerate(addresses):
        scheme, _, rest = address.partition(":")
        host = rest.removeprefix("//")
        if scheme in {"tcp", "tls"}:
            made[f"native{number}"] = {"host": host, "protocol": "busway" if scheme == "tcp" else "busways"}
        else:
            made[f"native{number}"] = {"host": "localhost", "pathname": host, "protocol": f"busway+{scheme}"}
    if http is not None:
        host = http.partition("://")[2].rstrip("/")
        made["http"] = {"host": host, "protocol": "http", "description": "Described in /openapi.json."}
        made["ws"] = {"host": host, "protocol": "ws", "description": "JSON messages, as over HTTP."}
    return made


class _Document:
    """The parts of a document, as they are gathered."""

    def __init__(self) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}

    def stream(self, stream: Mapping[str, Any]) -> None:
        """Its topics as channels: the bus takes messages on them, stores them, and gives them to channels and subscribers."""
        name = stream["name"]
        kept = f"Stored in {stream['store']}, for {stream['max_age']:g} s." if stream["max_age"] else "Stored."
        consumers = ", ".join(one["name"] for one in stream["channels"])
        text = f"The stream {name}. {kept}" + (f" Channels: {consumers}." if consumers else "")
        # The default stream has no topics of its own: it takes what no other one does.
        for number, topic in enumerate(stream["topics"] or ["**"]):
            key = _key("stream", name) + (f".{number + 1}" if number else "")
            message = self._message(_key("message", "any"), "A message of any kind.", None, None)
            self._channel(key, topic, text, {"any": message})
            self._both(key, ["any"])

    def protocol(self, cls: type) -> None:
        """Its topics as a channel with a schema; if it has a reply, a service."""
        kind: Kind[Any] = kind_for(cls)
        key = _key("protocol", kind.codec.name)
        message = self._typed(kind.codec)
        text = " ".join((cls.__doc__ or "").split()) or f"Messages of the type {kind.codec.name}."
        self._channel(key, f"{kind.prefix}/**" if kind.prefix else "**", text, {kind.codec.name: message})
        if kind.reply is None:
            self._both(key, [kind.codec.name])
            return
        reply = self._typed(kind.reply)
        self.channels[f"{key}.reply"] = {"address": None, "messages": {"reply": _to("messages", reply)}}
        self._request(key, kind.codec.name, f"{key}.reply")

    def service(self, topic: str) -> None:
        key = _key("service", topic)
        message = self._message(_key("message", "any"), "A message of any kind.", None, None)
        self._channel(key, topic, f"The service {topic}.", {"request": message})
        self.channels[f"{key}.reply"] = {"address": None, "messages": {"reply": _to("messages", message)}}
        self._request(key, "request", f"{key}.reply")

    def _channel(self, key: str, topic: str, text: str, messages: Mapping[str, str]) -> None:
        made: dict[str, Any] = {
            "description": text,
            "messages": {name: _to("messages", message) for name, message in messages.items()},
        }
        if topic.startswith("re:"):
            made |= {"address": None, "description": f"{text} Topics: {topic}"}
        else:
            made["address"], parameters = address(topic)
            if parameters:
                made["parameters"] = parameters
        self.channels[key] = made

    def _both(self, key: str, messages: Iterable[str]) -> None:
        named = [{"$ref": f"#/channels/{_escaped(key)}/messages/{_escaped(name)}"} for name in messages]
        channel = {"$ref": f"#/channels/{_escaped(key)}"}
        self.operations[f"{key}.publish"] = {"action": "receive", "channel": channel, "messages": named}
        self.operations[f"{key}.subscribe"] = {"action": "send", "channel": channel, "messages": named}

    def _request(self, key: str, message: str, reply: str) -> None:
        here, there = f"#/channels/{_escaped(key)}", f"#/channels/{_escaped(reply)}"
        self.operations[f"{key}.request"] = {
            "action": "receive",
            "channel": {"$ref": here},
            "messages": [{"$ref": f"{here}/messages/{_escaped(message)}"}],
            "reply": {"channel": {"$ref": there}, "messages": [{"$ref": f"{there}/messages/reply"}]},
        }

    def _typed(self, codec: Codec[Any]) -> str:
        key = _key("message", codec.name)
        schema, more = schema_of(codec.type)
        self.schemas |= more
        return self._message(key, codec.name, schema, _TYPES[codec.encoding])

    def _message(self, key: str, title: str, schema: Any, kind: str | None) -> str:
        made: dict[str, Any] = {"title": title}
        if schema is not None:
            made["payload"] = schema
        if kind is not None:
            made["contentType"] = kind
        self.messages[key] = made
        return key


def schema_of(type_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of a type, and those that it refers to; one that has none may be anything."""
    if hasattr(type_, "model_json_schema"):
        made: dict[str, Any] = type_.model_json_schema(ref_template=_SCHEMA.replace("name", "model"))
        more = made.pop("$defs", {})
        return made, more
    try:
        (schema,), components = msgspec.json.schema_components([type_], ref_template=_SCHEMA)
    except (TypeError, RuntimeError):
        return {"description": f"Some {getattr(type_, '__name__', type_)!s}."}, {}
    return schema, components


def address(topic: str) -> tuple[str, dict[str, Any]]:
    """A topic pattern as an address with parameters."""
    parameters: dict[str, Any] = {}
    parts = []
    for fragment in topic.split("/"):
        if fragment in {"*", "**"}:
            kind, text = ("part", "One fragment.") if fragment == "*" else ("rest", "Any number of fragments.")
            name = f"{kind}{sum(one.startswith(kind) for one in parameters) + 1}"
            parameters[name] = {"description": text}
            parts.append(f"{{{name}}}")
        else:
            parts.append(fragment)
    return "/".join(parts), parameters


def _key(kind: str, name: str) -> str:
    """A key of the document: letters, digits, `.`, `-` and `_`; others as their number."""
    return f"{kind}.{re.sub(r'[^A-Za-z0-9-]', lambda found: f'_{ord(found[0]):x}_', name)}"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _to(kind: str, key: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{_escaped(key)}"}
