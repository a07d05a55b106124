"""The broker's own services on topics below `$bus`: answers their requests instead of a client. The hub calls it."""

import asyncio
import base64
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import PROTOCOL, Engine, Message
from busway.broker.admin import channels, connections, permissions, providers, rates, streams, topics
from busway.broker.admin.events import CLUSTER
from busway.broker.admin.paging import MOST
from busway.broker.admission import AGENT, limits
from busway.broker.flags import PIN
from busway.broker.retained.store import RetainedMessage
from busway.common import environment
from busway.errors import BusError, Code
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

INFO: Final = "$bus/info"
KEPT: Final = "$bus/kept"


class InfoQuestion(msgspec.Struct, frozen=True):
    """The payload of a request on `$bus/info`: the number of connections to list, and how many to skip.

    Without `streams` the answer has no streams and channels, which can be many.
    """

    connections: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 1000
    skip: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    streams: bool = True


class KeptQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/kept`: a selection of retained messages (rules as in a SUBSCRIBE, base64)."""

    pattern: str = "**"
    rules: bytes = b""
    skip: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    most: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 1000


class PromoteQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/cluster/promote`: a node, and whether its copy may be incomplete."""

    node: Annotated[str, msgspec.Meta(min_length=1)]
    force: bool = False


def register(engine: Engine) -> None:
    """Have the engine pass requests on these topics to the hub."""
    for topic in (*_SERVICES, *_FILTERED, *_LATER, *_OWN):
        engine.internal(topic)


def call(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Answer one request, at once or by a task."""
    _, conn, number, message = event
    try:
        permissions.check(hub, conn, message)
    except BusError as error:
        hub.engine.reply(conn, number, *refusal(message, error))
        return
    if (later := _LATER.get(message.topic)) is not None:
        hub.admin.begin(conn, number, message, later)
        return
    if (own := _OWN.get(message.topic)) is not None:
        session = hub.sessions[conn].session
        hub.admin.begin(conn, number, message, lambda hub, message: own(hub, message, session))
        return
    try:
        filtered = _FILTERED.get(message.topic)
        answer = _SERVICES[message.topic](hub, message) if filtered is None else filtered(hub, message, conn)
        payload = msgspec.json.encode(answer)
    except (msgspec.MsgspecError, RecursionError, BusError) as error:
        hub.engine.reply(conn, number, *refusal(message, error))
        return
    hub.engine.reply(conn, number, Code.OK, payload)


def refusal(message: Message, error: BusError | msgspec.MsgspecError | RecursionError) -> tuple[int, bytes]:
    """The code and the text of an error, for the requester."""
    if isinstance(error, BusError):
        return error.code or Code.STORE_FAILED, error.reason.encode()  # errors of the broker's disk have no code
    return Code.HANDLER_ERROR, f"{message.topic}: {error}".encode()


class AdminServices:
    """Runs requests to the broker whose answers take time, such as those that wait for a disk."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, conn: int, number: int, message: Message, service: streams.Service) -> None:
        task = self._hub.loop.create_task(self._answer(conn, number, message, service), name=f"busway {message.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, conn: int, number: int, message: Message, service: streams.Service) -> None:
        hub = self._hub
        session = hub.sessions.get(conn)
        try:
            made = permissions.visible(hub, conn, message.topic, await service(hub, message))
            code, payload = int(Code.OK), made if isinstance(made, bytes) else msgspec.json.encode(made)
        except (msgspec.MsgspecError, RecursionError, BusError) as error:
            code, payload = refusal(message, error)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            hub.unexpected(error, session, message.topic)
            return
        # The connection may have ended, and another one may have its number.
        if session is not None and hub.sessions.get(conn) is session:
            hub.engine.reply(conn, number, code, payload)
            hub.flush()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


def info(hub: "Hub", message: Message) -> dict[str, Any]:
    """The answer for `busway info`: the broker, its counters, and its connections."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=InfoQuestion) if payload else InfoQuestion()
    listed = islice(hub.sessions.items(), question.skip, question.skip + question.connections)
    found = overview(hub, streams=question.streams)
    return found | {"connections": [connections.shown(hub, conn) for conn, _ in listed]}


def overview(hub: "Hub", *, streams: bool = True) -> dict[str, Any]:
    """The answer for `busway info` without the connections."""
    return {
        "name": hub.name,
        "guid": hub.guid,
        "version": AGENT.partition("/")[2],
        "protocol": PROTOCOL,
        "time": environment.time_ns() / 1e9,
        "uptime": hub.loop.time() - hub.runtime.started,
        "addresses": hub.runtime.addresses,
        "cluster": hub.peers.members.name,
        "servers": hub.settings.servers,
        "limits": limits(hub.settings),
        "stats": stats(hub),
        "kept": hub.retained.figures(),
        "shared": hub.services.figures(),
        "storage": "memory" if hub.folder is None else "disk",
        "disk": hub.disk.figures(),
        "streams": [stream.figures() for stream in hub.streams.by_name.values()] if streams else [],
    }


def kept(hub: "Hub", message: Message, conn: int) -> dict[str, Any]:
    """As many retained messages as fit and as the user may subscribe to, in order.

    It is for tools that can't subscribe like `bus.kept()`.
    """
    payload = message.payload
    question = msgspec.json.decode(payload, type=KeptQuestion) if payload else KeptQuestion()
    session = hub.sessions.get(conn)
    grants = None if session is None else session.grants
    found = hub.retained.box.select(question.pattern, question.rules, grants=grants)
    room = hub.settings.frame - KiB
    listed: list[msgspec.Raw] = []
    for retained in islice(found, question.skip, question.skip + question.most):
        record = _kept(retained)
        encoded = msgspec.json.encode(record)
        if len(encoded) > room and not listed:
            # The message is too large for any reply: only a subscription can get its payload.
            encoded = msgspec.json.encode(record | {"payload": None, "fields": None})
        room -= len(encoded) + 1
        if room < 0:
            break
        listed.append(msgspec.Raw(encoded))
    return {"total": len(found), "skip": question.skip, "kept": listed}


def _kept(message: RetainedMessage) -> dict[str, Any]:
    payload = message.payload
    return {
        "id": f"{message.session:016x}{message.number:016x}",
        "kind": "pin" if message.flags & PIN else "post",
        "topic": message.topic,
        "sender": message.name,
        "session": f"{message.session:016x}",
        "time": message.time,
        "fields": _plain(msgspec.msgpack.decode(message.fields)) if message.fields else {},
        "size": len(payload),
        "payload": _text(payload),
    }


def _text(value: bytes) -> str | dict[str, str]:
    """Text as it is, other bytes as {"base64": ...}."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _plain(value: Any) -> Any:
    """A field's value for JSON, with bytes as {"base64": ...} to distinguish them from text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def stats(hub: "Hub") -> dict[str, Any]:
    """The counters of the engine, the sessions, the retained messages and the shared services."""
    return hub.engine.stats() | {
        "kept": len(hub.retained.box),
        "kept_bytes": hub.retained.box.bytes,
        "shared_pending": hub.services.asking.pending,
        "shared_late": hub.services.asking.late,
        "connections": len(hub.sessions),
        "clients": hub.runtime.clients,
        "refused": hub.runtime.refused,
        "faults": hub.runtime.faults,
        "errors": hub.runtime.errors,
        "doubtful": hub.runtime.doubtful,
        **hub.peers.members.stats(),
    }


_SERVICES: Final[dict[str, Callable[["Hub", Message], dict[str, Any]]]] = {
    INFO: info,
    "$bus/rates": rates.rates,
    "$bus/topic": topics.topic,
    "$bus/services": providers.services,
    "$bus/connections": connections.connections,
    "$bus/connections/close": connections.close,
}
_FILTERED: Final[dict[str, Callable[["Hub", Message, int], dict[str, Any]]]] = {KEPT: kept}
"""Services that get the connection of the requester, because its user may see a part."""


async def cluster(hub: "Hub", message: Message) -> dict[str, Any]:  # noqa: ARG001 - the request has no payload
    """The answer for `busway cluster`."""
    return await hub.peers.members.figures()


async def promote(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/cluster/promote`: own the streams of a failed node from now on."""
    question = msgspec.json.decode(message.payload, type=PromoteQuestion)
    return await hub.peers.members.promote(question.node, force=question.force)


_LATER: Final = (
    streams.SERVICES
    | channels.SERVICES
    | {CLUSTER: cluster, f"{CLUSTER}/promote": promote, "$bus/topics": topics.topics}
)
_OWN: Final = {"$bus/stored": streams.stored}
"""Services that get the session of the requester."""
