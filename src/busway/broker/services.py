"""The broker's own services, on topics below `$bus`: requests to them are answered here instead of by a client."""

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import PROTOCOL, Engine, Message
from busway.broker.admission import AGENT, limits
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub

INFO: Final = "$bus/info"


class InfoQuestion(msgspec.Struct, frozen=True):
    """The payload of a request on `$bus/info`: how many connections to list, and from which on."""

    connections: int = 1000
    skip: int = 0


def register(engine: Engine) -> None:
    """Have the engine hand over the requests on these topics."""
    for topic in _SERVICES:
        engine.internal(topic)


def call(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Answer one request."""
    _, conn, number, message = event
    try:
        payload = msgspec.json.encode(_SERVICES[message.topic](hub, message))
    except msgspec.MsgspecError as error:
        hub.engine.reply(conn, number, Code.HANDLER_ERROR, f"{message.topic}: {error}".encode())
        return
    hub.engine.reply(conn, number, Code.OK, payload)


def info(hub: "Hub", message: Message) -> dict[str, Any]:
    """What `busway info` shows: the broker, its counters, and its connections."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=InfoQuestion) if payload else InfoQuestion()
    listed = islice(hub.sessions.items(), question.skip, question.skip + question.connections)
    return {
        "name": hub.name,
        "guid": hub.guid,
        "version": AGENT.partition("/")[2],
        "protocol": PROTOCOL,
        "time": time.time(),
        "uptime": hub.loop.time() - hub.started,
        "addresses": hub.addresses,
        "servers": hub.settings.servers,
        "limits": limits(hub.settings),
        "stats": stats(hub),
        "connections": [_connection(hub, conn) for conn, _ in listed],
    }


def stats(hub: "Hub") -> dict[str, Any]:
    """The engine's counters and those of the sessions."""
    return hub.engine.stats() | {
        "connections": len(hub.sessions),
        "clients": hub.clients,
        "refused": hub.refused,
        "faults": hub.faults,
        "errors": hub.errors,
    }


def _connection(hub: "Hub", conn: int) -> dict[str, Any]:
    session = hub.sessions[conn]
    figures = hub.engine.connection(conn)
    slowed = session.paused or figures["aside_bytes"]
    state = "closing" if session.closing else "slowed" if slowed else "open" if session.accepted else "new"
    return {
        "client": session.client,
        "name": session.name,
        "transport": session.scheme,
        "peer": session.peer(),
        "peer_name": session.peer_name(),
        "state": state,
        **figures,
    }


_SERVICES: Final[dict[str, Callable[["Hub", Message], dict[str, Any]]]] = {INFO: info}
