"""Admission: decides HELLO, SUBSCRIBE and SERVE frames by rules in Python, and answers with a code of the protocol.

A client logs in after its HELLO, see `access.logins`.

The hub's event table calls it. The engine itself decides all frames of plain publishes, pushes and replies.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import PROTOCOL, __version__
from busway.authority.login import Admitted, Claim, Method
from busway.broker.access.logins import REFUSED
from busway.broker.admin import events
from busway.broker.flags import SHARED, WAIT
from busway.errors import BusError, Code
from busway.settings import Caller, Settings, is_secret
from busway.topic import is_reserved

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.session import Session

AGENT: Final = f"busway/{__version__}"
SERVED: Final = 16_384
"""The number of services of one client that are listed. The oldest ones are left out."""
_NAME: Final = 255


class Hello(msgspec.Struct, frozen=True):
    """The map of HELLO."""

    session: Annotated[int, msgspec.Meta(ge=1)]
    secret: bytes | None = None
    """Proves that the session is the client's own. The broker checks it and does not store it."""
    name: Annotated[str, msgspec.Meta(max_length=_NAME)] = ""
    credentials: object = None
    """For `Settings.authenticate`."""
    user: Annotated[str, msgspec.Meta(max_length=_NAME)] = ""
    method: Method | None = None
    nonce: bytes = b""
    token: str | None = None
    agent: Annotated[str, msgspec.Meta(max_length=_NAME)] = ""
    generation: Annotated[int, msgspec.Meta(ge=0)] | None = None
    node: object = None
    """The node, if another broker of the cluster connects."""


_decoder = msgspec.msgpack.Decoder(Hello)


def hello(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Decide a HELLO: a WELCOME or a CLOSE."""
    _, conn, version, map_bytes = event
    session = hub.sessions.get(conn)
    if session is None or session.closing:
        return
    if version < 1:
        session.close(Code.VERSION, f"HELLO: version {version} is not supported; use 1 to {PROTOCOL}")
        return
    try:
        greeting = _decoder.decode(map_bytes)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        hub.runtime.faults += 1
        session.close(Code.HANDSHAKE, f"HELLO: {error}")
        return
    if greeting.credentials is not None and not isinstance(greeting.credentials, str | bytes):
        hub.runtime.faults += 1
        session.close(Code.HANDSHAKE, "HELLO: credentials must be text or bytes")
        return
    if greeting.node is None and not is_secret(greeting.secret, greeting.session):
        hub.runtime.refused += 1
        wrong = "no secret" if greeting.secret is None else "a secret that is not that of its session"
        session.close(Code.SESSION_SECRET, f"HELLO with {wrong}: use a client library of this version of Busway")
        return
    if hub.settings.authenticate is None:
        _authenticated(hub, session, version, greeting, "")
        return
    caller = Caller(
        name=greeting.name,
        session=greeting.session,
        credentials=greeting.credentials,
        agent=greeting.agent,
        transport=session.scheme,
        peer=session.peer(),
        peer_name=session.peer_name(),
        user=greeting.user,
    )
    answer = hub.settings.authenticate(caller)
    if isinstance(answer, bool | str):
        _answered(hub, session, version, greeting, answer)
    else:
        hub.logins.ask(session, answer, partial(_answered, hub, session, version, greeting))


def _answered(hub: "Hub", session: "Session", version: int, greeting: Hello, answer: object) -> None:
    """Continue a HELLO with the answer of `authenticate`."""
    # Exactly True: no other value must admit a client.
    if answer is True:
        _authenticated(hub, session, version, greeting, "")
    elif isinstance(answer, str) and answer and hub.authority.policy is not None:
        _authenticated(hub, session, version, greeting, answer)
    else:
        hub.refusals.login(greeting.user, session.peer(), "authenticate() refused it")
        session.close(Code.UNAUTHORIZED, REFUSED)


def _authenticated(hub: "Hub", session: "Session", version: int, greeting: Hello, user: str) -> None:
    """Continue a HELLO: a node, a client whose `user` is known already, or one that has to log in."""
    if greeting.node is not None:
        if not hub.peers.members.clustered:
            hub.runtime.refused += 1
            session.close(Code.CLUSTER, "this broker is in no cluster")
        else:
            hub.peers.members.greeted(session, version, greeting.node)
    elif user:
        _admit(hub, session, version, greeting, Admitted(user))
    else:
        claim = Claim(greeting.user, greeting.method, greeting.nonce, greeting.token)
        hub.logins.begin(session, claim, greeting.session, partial(_admit, hub, session, version, greeting))


def _admit(hub: "Hub", session: "Session", version: int, greeting: Hello, admitted: Admitted) -> None:
    """Welcome a client with its user."""
    user = admitted.user
    other_user = hub.generations.user(greeting.session)
    if other_user is not None and other_user != user:
        hub.refusals.login(user, session.peer(), f"its session belongs to {other_user!r}")
        session.close(Code.SESSION_TAKEN, "the session belongs to another user")
        return
    seen: bool | None = None
    if greeting.generation is not None:
        if not hub.generations.passes(greeting.session, greeting.generation):
            hub.runtime.refused += 1
            session.close(Code.SESSION_TAKEN, "a later generation of this client has connected already")
            return
        seen = hub.generations.enter(greeting.session, greeting.generation)
    if hub.authority.policy is not None:
        hub.generations.bind(greeting.session, user)
    hub.runtime.clients += 1
    session.user, session.roles = user, admitted.roles
    session.grants = hub.authority.grants(user, admitted.roles) if user else None
    name = _bound(greeting.name, user)
    session.admitted(hub.runtime.clients, greeting.session, name)
    welcome = _welcome(hub, session, seen=seen, proof=admitted.proof)
    other = hub.engine.accept(
        session.conn, greeting.session, name, session.client, min(version, PROTOCOL), welcome, session.grants
    )
    hub.arrived(session)
    if other is not None and (old := hub.sessions.get(other)):
        old.close(Code.SESSION_TAKEN, "another connection came with the same session")


def _bound(name: str, user: str) -> str:
    """The name that others see of a client: with users it begins with that of its user, so it can't be claimed."""
    if not user or name == user or name.startswith(f"{user}/"):
        return name
    return f"{user}/{name}" if name else user


def subscribe(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Decide a SUBSCRIBE. The engine checks the pattern, and queues the retained messages and the RESULT."""
    conn, number, pattern = event[1], event[3], event[6]
    bare = pattern.removeprefix("/")
    for_events = events.is_for_events(bare)
    if is_reserved(bare) and not for_events:
        hub.engine.refuse(conn, number, Code.RESERVED, f"topics below {pattern!r} belong to the broker")
        return
    try:
        (hub.events if for_events else hub.retained).subscribe(event)
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
        hub.runtime.answer_when(hub.peers.members.when_known, conn, number, 0)


def limits(settings: Settings) -> dict[str, int]:
    """The limits that a WELCOME has."""
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


def _welcome(hub: "Hub", session: "Session", *, seen: bool | None, proof: bytes | None) -> bytes:
    welcome = {
        "name": hub.name,
        "guid": hub.guid,
        "client": session.client,
        "grace": hub.settings.grace,
        "provider_timeout": hub.settings.provider_timeout,
        "agent": AGENT,
        "heartbeat": hub.settings.heartbeat,
        "limits": limits(hub.settings),
        "servers": hub.server_list.welcome(),
        "since": hub.runtime.since,
        "fields": hub.retained.fields,
    }
    if session.user:
        welcome["user"] = session.user
    if proof is not None:
        welcome["proof"] = proof
    if seen is not None:
        welcome["seen"] = seen
    return msgspec.msgpack.encode(welcome)


_MOST: Final = 65_536


class Generations:
    """The highest generation and the user of each session since the broker started."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[int, int] = {}
        self._users: dict[int, str] = {}

    def passes(self, session: int, generation: int) -> bool:
        """Whether no higher generation of the session has connected."""
        return generation >= self._known.get(session, 0)

    def enter(self, session: int, generation: int) -> bool:
        """Record an admitted generation. Returns whether the session has connected before."""
        seen = self._known.pop(session, None) is not None
        self._known[session] = generation
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return seen

    def user(self, session: int) -> str | None:
        """The user of a session; None if it is not known."""
        return self._users.get(session)

    def bind(self, session: int, user: str) -> None:
        """A session belongs to the first user that comes with it."""
        self._users.pop(session, None)
        self._users[session] = user
        if len(self._users) > self._most:
            del self._users[next(iter(self._users))]
