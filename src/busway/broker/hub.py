"""What the engine hands back, and who deals with it: one table from the kind of event to a function.

The hub owns the engine and knows the sessions by the engine's connection numbers. Nothing a client sends may raise
through it: an unexpected error ends that client's connection, is logged with its traceback, and is counted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway import _core
from busway._core import Engine
from busway.broker import admission, delivering, keeping, replaying, services, sharing, streaming
from busway.broker.delivering import Delivering
from busway.broker.fences import Fences
from busway.broker.keeping import Keeping
from busway.broker.pinlog import Pin
from busway.broker.pins import Pins
from busway.broker.pulse import Pulse
from busway.broker.replaying import Replaying
from busway.broker.services import Answering
from busway.broker.sharing import Sharing
from busway.broker.streaming import Streaming
from busway.errors import Code
from busway.settings import MiB, Settings
from busway.transport.flow import HIGH_WATER

if TYPE_CHECKING:
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

Events = list[tuple[Any, ...]] | None

_POOL: Final = 2 * MiB
"""What the engine keeps of written buffers. This and the transport's own buffer count for the outbox limit, so that a stuck
connection costs no more than it says."""


class Hub:
    """The engine and the sessions around it."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        guid: str,
        *,
        fields: bytes = b"",
        pins: Pins | None = None,
        found: Iterable[Pin] = (),
        folder: Path | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.name = name
        self.guid = guid
        self.engine = Engine(
            frame=settings.frame,
            topic=settings.topic,
            fields=settings.fields,
            subscriptions=settings.subscriptions,
            expressions=settings.expressions,
            outbox=settings.outbox - min(settings.outbox // 4, HIGH_WATER + _POOL),
            topics=settings.topics,
            senders=settings.senders,
            pending=settings.pending,
            patience_ms=int(settings.patience * 1000),
            stall_ms=int(settings.stall * 1000),
            defaults=fields or None,
        )
        self.started = self.loop.time()
        self.since = time.time_ns()
        self.addresses: tuple[str, ...] = ()
        self.sessions: dict[int, Session] = {}
        self.everyone: set[Session] = set()
        self.present: dict[int, Session] = {}
        """By the clients' own session numbers: the connection that each has now."""
        self.fences = Fences()
        self.clients = 0
        self.refused = 0
        self.faults = 0
        self.errors = 0
        self.empty = asyncio.Event()
        self.empty.set()
        self.pulse = Pulse(self)
        self.keeping = Keeping(self, pins, found, fields)
        self.sharing = Sharing(self)
        self.replaying = Replaying(self)
        self.streaming = Streaming(self, folder)
        self.delivering = Delivering(self)
        self.answering = Answering(self)
        self._ending: list[Session] = []
        self._table: dict[int, Callable[[Hub, tuple[Any, ...]], Events]] = {
            _core.EVENT_HELLO: admission.hello,
            _core.EVENT_SUBSCRIBE: admission.subscribe,
            _core.EVENT_UNSUBSCRIBE: _unsubscribed,
            _core.EVENT_BEHIND: replaying.behind,
            _core.EVENT_ROOM: _room,
            _core.EVENT_LATER: streaming.later,
            _core.EVENT_STORED: delivering.stored,
            _core.EVENT_CHANNEL: delivering.frame,
            _core.EVENT_OWN: delivering.own,
            _core.EVENT_SERVE: admission.serve,
            _core.EVENT_UNSERVE: sharing.unserve,
            _core.EVENT_KEEP: keeping.keep,
            _core.EVENT_REQUEST: sharing.request,
            _core.EVENT_CANCEL: sharing.cancel,
            _core.EVENT_ACCEPT: sharing.accept,
            _core.EVENT_ANSWER: sharing.answer,
            _core.EVENT_CALL: services.call,
            _core.EVENT_CLOSE: _closed,
            _core.EVENT_FAIL: _failed,
            _core.EVENT_PAUSE: _paused,
            _core.EVENT_RESUME: _resumed,
            _core.EVENT_WAIT: _waits,
            _core.EVENT_READ: _read,
            _core.EVENT_YIELD: _yielded,
        }
        services.register(self.engine)

    def handle(self, events: Events) -> None:
        """Deal with events until there are none, then end the connections that are done."""
        table = self._table
        while events:
            more: list[tuple[Any, ...]] = []
            for event in events:
                try:
                    if follow := table[event[0]](self, event):
                        more.extend(follow)
                except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
                    self.unexpected(error, self.sessions.get(event[1]), f"event {event[0]}")
            if follow := self.engine.flush():
                more.extend(follow)
            events = more
        if self._ending:
            ending, self._ending = self._ending, []
            for session in ending:
                session.flushed()

    def flush(self) -> None:
        """Write what was queued outside of handle(), and deal with what comes of it."""
        self.handle(self.engine.flush())

    def go_on(self, session: "Session") -> None:
        """After a yield, unless the connection has ended meanwhile."""
        if self.sessions.get(session.conn) is session:
            session.resume()
            self.handle(self.engine.resume(session.conn))

    def joined(self, session: "Session") -> None:
        self.sessions[session.conn] = session
        self.everyone.add(session)
        self.empty.clear()
        if len(self.sessions) > self.settings.connections:
            self.refused += 1
            session.close(Code.TOO_MANY_CONNECTIONS, f"{self.settings.connections} connections are the limit here")
            self.flush()

    def forget(self, conn: int) -> None:
        """The engine is done with this connection; publishers it blocked go on, its requesters are answered."""
        session = self.sessions.pop(conn, None)
        self.engine.disconnect(conn)
        self.keeping.forget(conn)
        self.sharing.forget(conn)
        self.replaying.forget(conn)
        self.delivering.forget(conn)
        if session is not None and self.present.get(session.session) is session:
            del self.present[session.session]
            self.keeping.lost(session.session, self.loop.time())
            self.pulse.arm()
        self.loop.call_soon(self.flush)

    def arrived(self, session: "Session") -> None:
        """A client was let in; if it was here before, what it left is its own again."""
        self.present[session.session] = session
        self.keeping.returned(session.session)

    def left(self, session: "Session") -> None:
        self.everyone.discard(session)
        if not self.everyone:
            self.empty.set()

    def ending(self, session: "Session") -> None:
        """To be ended once the engine has flushed."""
        self._ending.append(session)

    def unexpected(self, error: Exception, session: "Session | None", what: str) -> None:
        """An error of ours, not of the client: told, counted, and confined to this connection."""
        self.errors += 1
        log.error("unexpected error in %s; the connection is closed", what, exc_info=error)
        if session is not None:
            session.abort()


def _unsubscribed(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.replaying.end(*event[1:])
    return None


def _room(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.keeping.room(event[1])
    hub.replaying.plan(event[1])
    hub.delivering.room(event[1])
    return None


def _closed(hub: Hub, event: tuple[Any, ...]) -> Events:
    _, conn, code, text = event
    if session := hub.sessions.get(conn):
        log.debug("client %s (%r) closes: %s %s", session.client, session.name, code, text)
        if hub.present.get(session.session) is session:
            hub.keeping.left(session.session)
        hub.delivering.left(conn)
        session.end()
    return None


def _failed(hub: Hub, event: tuple[Any, ...]) -> Events:
    _, conn, code, text = event
    hub.faults += 1
    if session := hub.sessions.get(conn):
        log.info("client %s (%r, %s) is closed: %s %s", session.client, session.name, session.peer(), code, text)
        session.end()
    return None


def _paused(hub: Hub, event: tuple[Any, ...]) -> Events:
    if session := hub.sessions.get(event[1]):
        session.pause()
    hub.pulse.hurry()
    return None


def _waits(hub: Hub, event: tuple[Any, ...]) -> Events:  # noqa: ARG001, one signature for the table
    """What it publishes is set aside, for somebody is slow; how long that may last, time tells."""
    hub.pulse.hurry()
    return None


def _read(hub: Hub, event: tuple[Any, ...]) -> Events:
    """It still has to wait, but only with its publishes."""
    if session := hub.sessions.get(event[1]):
        session.resume()
    return None


def _resumed(hub: Hub, event: tuple[Any, ...]) -> Events:
    conn = event[1]
    if session := hub.sessions.get(conn):
        session.resume()
        return hub.engine.resume(conn)
    return None


def _yielded(hub: Hub, event: tuple[Any, ...]) -> Events:
    """What it asks for is much work: everybody else has a turn of the loop before it goes on."""
    if session := hub.sessions.get(event[1]):
        session.pause()
        hub.loop.call_soon(hub.go_on, session)
    return None
