"""`$bus/connections` and `$bus/connections/close`: list the connections of clients page by page, and end one."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import Message
from busway.broker.admin.paging import MOST, PageQuestion
from busway.errors import Code, OutOfRange

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.session import Session


class CloseQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/connections/close`."""

    client: Annotated[int, msgspec.Meta(ge=0, le=MOST)]
    """The number of the client."""
    name: str
    """The name of the client, which must match, so that no other client is disconnected by mistake."""


def connections(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/connections`: one page of the connections with their figures."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=PageQuestion) if payload else PageQuestion()
    found = [conn for conn, session in hub.sessions.items() if question.has(session.name, str(session.client))]
    page = question.page(found, lambda conn: hub.sessions[conn].client, lambda conn, name: _figure(hub, conn, name))
    return {"total": len(found), "skip": question.skip, "connections": [shown(hub, conn) for conn in page]}


def close(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/connections/close`: end the connection of a client, which may connect again."""
    question = msgspec.json.decode(message.payload, type=CloseQuestion)
    session = _found(hub, question.client)
    if session.name != question.name:
        reason = (
            f"client {question.client} has the name {session.name!r}, not {question.name!r}: list the clients again"
        )
        raise OutOfRange(reason)
    session.close(Code.GOING_AWAY, "an operator has disconnected this client")
    hub.loop.call_soon(hub.flush)
    return {"client": session.client, "name": session.name}


def _found(hub: "Hub", client: int) -> "Session":
    for session in hub.sessions.values():
        if session.client == client and not session.node:
            return session
    raise OutOfRange(f"there is no client {client} at this broker: it has left, or is connected to another node")


def shown(hub: "Hub", conn: int) -> dict[str, Any]:
    """The figures of a connection."""
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
        "user": session.user,
        "state": state,
        "node": session.node,
        **figures,
    }


_SLOW: Final = "slow"
"""An order: held subscriptions and slowed connections first, then by waiting bytes."""


def _figure(hub: "Hub", conn: int, name: str) -> Any:
    figures = hub.engine.connection(conn)
    if name != _SLOW:
        return figures[name]
    slowed = bool(hub.sessions[conn].paused or figures["aside_bytes"] or figures["held"])
    return slowed, figures["outbox_bytes"] + figures["aside_bytes"], figures["messages_dropped"]
