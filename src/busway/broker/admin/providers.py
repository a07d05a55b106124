"""`$bus/services`: the topics that clients serve, with the load and the failures of their providers, page by page.

A service has a schema if this process has declared the protocol of its requests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from busway._core import Message
from busway.broker.admin.paging import PageQuestion
from busway.client.typed.protocol import Kind, declared, kind_for

if TYPE_CHECKING:
    from busway.broker.hub import Hub


def services(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/services`: one page of the services of this node's clients and of linked nodes."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=PageQuestion) if payload else PageQuestion()
    found: dict[str, dict[str, Any]] = {}
    for topic, shared, provider in _providers(hub):
        if question.has(topic):
            service = found.setdefault(topic, {"topic": topic, "shared": shared, "providers": []})
            service["providers"].append(provider)
    page = question.page(found.values(), _topic, _figure)
    return {"total": len(found), "skip": question.skip, "services": [_shown(service) for service in page]}


def _topic(service: dict[str, Any]) -> str:
    return str(service["topic"])


def _figure(service: dict[str, Any], name: str) -> int:
    return sum(provider[name] for provider in service["providers"])


def _shown(service: dict[str, Any]) -> dict[str, Any]:
    sums = {name: _figure(service, name) for name in ("running", "calls", "failures")}
    return service | sums | {"schema": _schema(service["topic"])}


def _providers(hub: "Hub") -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Topic, whether it is shared, and the figures of each provider. The engine counts nothing of exclusive services."""
    shared = set[str]()
    for figures in hub.services.figures():
        shared.add(figures["topic"])
        names = ("running", "calls", "failures", "state")
        yield (
            figures["topic"],
            True,
            {
                "name": figures["provider"],
                "client": None,
                "node": figures["far"],
                **{name: figures[name] for name in names},
            },
        )
    for conn, session in hub.sessions.items():
        if session.served and hub.engine.connection(conn)["services"]:
            for topic in sorted(set(session.served.values()) - shared):
                provider = {"name": session.name, "client": session.client, "node": session.node}
                yield topic, False, provider | {"running": 0, "calls": 0, "failures": 0, "state": "willing"}


def _schema(topic: str) -> dict[str, Any] | None:
    """The JSON schema of the requests on a topic, if a declared protocol has one."""
    for cls in declared():
        kind: Kind[Any] = kind_for(cls)
        if kind.reply is not None and (topic == kind.prefix or topic.startswith(f"{kind.prefix}/")):
            type_ = kind.codec.type
            try:
                made: dict[str, Any] = (
                    type_.model_json_schema() if hasattr(type_, "model_json_schema") else msgspec.json.schema(type_)
                )
            except (TypeError, RuntimeError):  # a type without a schema
                return None
            return _inlined(made)
    return None


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its root in place of a reference to it."""
    name = schema.get("$ref", "").rpartition("/")[2]
    definitions = schema.get("$defs", {})
    return {**definitions[name], "$defs": definitions} if name in definitions else schema
