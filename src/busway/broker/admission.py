"""Who comes in and what they may ask for: the rules that need Python, each answered with a code of the protocol.

Called by the hub's table. Everything a plain publish, push or reply needs is decided in the engine.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import PROTOCOL, __version__
from busway.broker.admin import events
from busway.broker.flags import SHARED, WAIT
from busway.errors import BusError, Code
from busway.settings import Caller, Settings, is_secret
from busway.topic import is_reserved

if TYPE_CHECKING:
    from busway.broker.hub import Hub

AGENT: Final = f"busway/{__version__}"
SERVED: Final = 16_384
"""Services of one client that are remembered, to be listed; the oldest are forgotten."""
_NAME: Final = 255


class Hello(msgspec.Struct, frozen=True):
    """The map of HELLO."""

    session: Annotated[int, msgspec.Meta(ge=1)]
    secret: bytes | None = None
    """Proves that the session is the client's own. It is checked and not kept."""
    name: Annotated[str, msgspec.Meta(max_length=_NAME)] = ""
    credentials: object = None
    agent: Annotated[str, msgspec.Meta(max_length=_NAME)] = ""
    generation: Annotated[int, msgspec.Meta(ge=0)] | None = None
    node: object = None
    """Of another broker: who it is."""


_decoder = msgspec.msgpack.Decoder(Hello)


def hello(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Decide a HELLO: a WELCOME or a CLOSE."""
    _, conn, version, map_bytes = event
    session = hub.sessions.get(conn)
    if session is None or session.closing:
        return
    if version < 1:
        session.close(Code.VERSION, f"versions 1 to {PROTOCOL} are spoken here")
        return
    try:
        said = _decoder.decode(map_bytes)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        hub.faults += 1
        session.close(Code.HANDSHAKE, f"HELLO: {error}")
        return
    if said.credentials is not None and not isinstance(said.credentials, str | bytes):
        hub.faults += 1
        session.close(Code.HANDSHAKE, "HELLO: credentials must be text or bytes")
        return
    if said.node is None and not is_secret(said.secret, said.session):
        hub.refused += 1
        wrong = "no secret" if said.secret is None else "a secret that is not that of its session"
        session.close(Code.SESSION_SECRET, f"HELLO with {wrong}: use a client library of this version of Busway")
        return
    if hub.settings.authenticate is not None:
        caller = Caller(
            name=said.name,
            session=said.session,
            credentials=said.credentials,
            agent=said.agent,
            transport=session.scheme,
            peer=session.peer(),
            peer_name=session.peer_name(),
        )
        # Exactly True: a coroutine that nobody awaits must not let anybody in.
        if hub.settings.authenticate(caller) is not True:
            hub.refused += 1
            session.close(Code.UNAUTHORIZED, "the credentials were refused")
            return
    if said.node is not None:
        if not hub.peers.members.clustered:
            hub.refused += 1
            session.close(Code.CLUSTER, "this broker is in no cluster")
        else:
            hub.peers.members.greeted(session, version, said.node)
        return
    seen: bool | None = None
    if said.generation is not None:
        if not hub.generations.passes(said.session, said.generation):
            hub.refused += 1
            session.close(Code.SESSION_TAKEN, "a later generation of this client was here")
            return
        seen = hub.generations.enter(said.session, said.generation)
    hub.clients += 1
    session.admitted(hub.clients, said.session, said.name)
    welcome = _welcome(hub, hub.clients, seen=seen)
    other = hub.engine.accept(conn, said.session, said.name, hub.clients, min(version, PROTOCOL), welcome)
    hub.arrived(session)
    if other is not None and (old := hub.sessions.get(other)):
        old.close(Code.SESSION_TAKEN, "another connection came with the same session")


def subscribe(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Decide a SUBSCRIBE; the engine checks the pattern and queues what is kept and the RESULT."""
    conn, number, pattern = event[1], event[3], event[6]
    bare = pattern.removeprefix("/")
    told = events.are_meant(bare)
    if is_reserved(bare) and not told:
        hub.engine.refuse(conn, number, Code.RESERVED, f"topics below {pattern!r} belong to the broker")
        return
    try:
        (hub.events if told else hub.retained).subscribe(event)
    except BusError as error:
        hub.engine.refuse(conn, number, error.code, error.reason)


def serve(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Decide a SERVE."""
    _, conn, service, number, topic, flags = event
    if is_reserved(topic.removeprefix("/")):
        hub.engine.refuse(conn, number, Code.RESERVED, f"the topic {topic!r} belongs to the broker")
        return
    if hub.engine.serve(conn, service, number, topic, flags) != Code.OK:
        return
    if (session := hub.sessions.get(conn)) is not None:
        session.served[service] = topic.removeprefix("/")
        if len(session.served) > SERVED:
            del session.served[next(iter(session.served))]
    if flags & SHARED:
        hub.services.join(conn, service, topic, flags)
    if flags & WAIT:
        hub.answer_when_known(conn, number, 0)


def limits(settings: Settings) -> dict[str, int]:
    """The limits a client is told."""
    return {
        "frame": settings.frame,
        "topic": settings.topic,
        "fields": settings.fields,
        "subscriptions": settings.subscriptions,
        "expressions": settings.expressions,
        "outbox": settings.outbox,
        "topics": settings.topics,
        "senders": settings.senders,
        "pending": settings.pending,
        "kept": settings.kept,
        "kept_bytes": settings.kept_bytes,
    }


def _welcome(hub: "Hub", client: int, *, seen: bool | None) -> bytes:
    welcome = {
        "name": hub.name,
        "guid": hub.guid,
        "client": client,
        "grace": hub.settings.grace,
        "provider_timeout": hub.settings.provider_timeout,
        "agent": AGENT,
        "heartbeat": hub.settings.heartbeat,
        "limits": limits(hub.settings),
        "servers": hub.server_list.welcome(),
        "since": hub.since,
        "fields": hub.retained.fields,
    }
    if seen is not None:
        welcome["seen"] = seen
    return msgspec.msgpack.encode(welcome)


_MOST: Final = 65_536


class Generations:
    """The highest generation that each session came with, since the broker started."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[int, int] = {}

    def passes(self, session: int, generation: int) -> bool:
        """Whether no higher generation was here."""
        return generation >= self._known.get(session, 0)

    def enter(self, session: int, generation: int) -> bool:
        """This one was let in; whether one of its session was here before."""
        seen = self._known.pop(session, None) is not None
        self._known[session] = generation
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return seen
