"""The hub of a broker: the engine, the sessions, the drivers, and the table that leads each event of the engine to its function.

A session is known by the engine's number of its connection. Nothing that a client sends may raise through the hub: an
unexpected error ends that client's connection, is logged with its traceback, and is counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway import _core
from busway._core import Engine
from busway.broker import admission
from busway.broker.admin import services
from busway.broker.admin.events import ClusterEvents as Happenings
from busway.broker.admin.services import AdminServices
from busway.broker.admission import Generations
from busway.broker.channels import manager as channels_manager
from busway.broker.channels.manager import Channels
from busway.broker.clock import Clock
from busway.broker.disk_watch import DiskWatch
from busway.broker.peers import ALONE, Peers
from busway.broker.retained import driver as retained_driver
from busway.broker.retained.driver import RetainedDriver
from busway.broker.retained.pin_entries import Pin
from busway.broker.retained.pin_file import PinFile
from busway.broker.server_list import ServerList
from busway.broker.services import driver as services_driver
from busway.broker.services.driver import ServicesDriver
from busway.broker.session import reason
from busway.broker.streams import manager as streams_manager, replay
from busway.broker.streams.manager import Streams
from busway.broker.streams.replay import Replays
from busway.common import environment
from busway.errors import Code
from busway.settings import MiB, Settings
from busway.transport.buffers import HIGH_WATER

if TYPE_CHECKING:
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

Events = list[tuple[Any, ...]] | None

_POOL: Final = 2 * MiB
"""Bytes of written buffers that the engine reuses. They and the transport's buffer count for the outbox limit, so a stuck
connection costs no more than the limit."""


class Hub:
    """The engine, its sessions and the drivers of one broker."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        guid: str,
        *,
        fields: bytes = b"",
        pins: PinFile | None = None,
        found: Iterable[Pin] = (),
        folder: Path | None = None,
        stores: Mapping[str, str] | None = None,
        nodes: "Callable[[Hub], Peers] | None" = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.name = name
        self.guid = guid
        self.folder = folder
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
            links=0 if nodes is None else settings.interest,
            defaults=fields or None,
        )
        self.started = self.loop.time()
        self.since = environment.time_ns()
        self.addresses: tuple[str, ...] = ()
        self.http: str | None = None
        """The address of the HTTP port, when it is open."""
        self.sessions: dict[int, Session] = {}
        self.everyone: dict[Session, None] = {}
        """All sessions, in the order in which they came; their end is announced in the same order."""
        self.present: dict[int, Session] = {}
        """The current connection of each client, by the client's own session number."""
        self.generations = Generations()
        self.clients = 0
        self.opened: Counter[str] = Counter()
        """Connections that were opened, by transport."""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Connections that have ended, by transport and reason."""
        self.refused = 0
        self.faults = 0
        self.errors = 0
        self.doubtful = 0
        """Messages that clients sent again here although another broker may have stored them."""
        self.empty = asyncio.Event()
        self.empty.set()
        self.watched: set[int] = set()
        """Numbers of the streams whose new records are reported to the cluster, with or without channels."""
        self.peers = ALONE if nodes is None else nodes(self)
        """The other brokers of its cluster. Each driver below gets the interface that it needs."""
        members = self.peers.members
        self.clock = Clock(self, members)
        self.disk = DiskWatch(self, folder)
        self.retained = RetainedDriver(self, pins, found, fields, self.peers.retained, clustered=members.clustered)
        self.services = ServicesDriver(self, self.peers.services)
        self.replays = Replays(self)
        self.streams = Streams(self, folder, stores or {}, self.peers.streams)
        self.channels = Channels(self, self.peers.channels, members)
        self.admin = AdminServices(self)
        self.server_list = ServerList(self, members)
        self.events = Happenings(self)
        self._ending: list[Session] = []
        self._table: dict[int, Callable[[Hub, tuple[Any, ...]], Events]] = {
            _core.EVENT_HELLO: admission.hello,
            _core.EVENT_SUBSCRIBE: admission.subscribe,
            _core.EVENT_UNSUBSCRIBE: _unsubscribed,
            _core.EVENT_BEHIND: replay.behind,
            _core.EVENT_ROOM: _room,
            _core.EVENT_LATER: streams_manager.later,
            _core.EVENT_STORED: _stored,
            _core.EVENT_CHANNEL: channels_manager.frame,
            _core.EVENT_OWN: channels_manager.own,
            _core.EVENT_SERVE: admission.serve,
            _core.EVENT_UNSERVE: services_driver.unserve,
            _core.EVENT_KEEP: retained_driver.keep,
            _core.EVENT_REQUEST: services_driver.request,
            _core.EVENT_CANCEL: services_driver.cancel,
            _core.EVENT_ACCEPT: services_driver.accept,
            _core.EVENT_ANSWER: services_driver.answer,
            _core.EVENT_CALL: services.call,
            _core.EVENT_WELCOME: _welcomed,
            _core.EVENT_NODE: _node,
            _core.EVENT_PONG: _pong,
            _core.EVENT_SYNCED: _synced,
            _core.EVENT_CONFLICT: _conflict,
            _core.EVENT_PROVIDER: services_driver.provider,
            _core.EVENT_ASK: services_driver.ask,
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
        """Handle events until there are none, then end the connections that were closed."""
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
        """Write output that was queued outside of handle(), and handle the events that follow."""
        self.handle(self.engine.flush())

    def go_on(self, session: "Session") -> None:
        """Continue after a yield, unless the connection has ended."""
        if self.sessions.get(session.conn) is session:
            session.resume()
            self.handle(self.engine.resume(session.conn))

    def joined(self, session: "Session") -> None:
        self.sessions[session.conn] = session
        self.everyone[session] = None
        self.opened[session.scheme] += 1
        self.empty.clear()
        if len(self.sessions) > self.settings.connections:
            self.refused += 1
            session.close(Code.TOO_MANY_CONNECTIONS, f"{self.settings.connections} connections are the limit here")
            self.flush()

    def forget(self, conn: int) -> None:
        """A connection has ended: release the publishers that it blocked, and answer its requesters."""
        session = self.sessions.pop(conn, None)
        self.engine.disconnect(conn)
        self.retained.forget(conn)
        self.services.forget(conn)
        self.replays.forget(conn)
        self.channels.consumers.forget(conn)
        self.events.forget(conn)
        self.peers.members.forget(conn)
        if session is not None and self.present.get(session.session) is session:
            del self.present[session.session]
            self.retained.lost(session.session, self.loop.time())
            self.clock.arm()
        self.loop.call_soon(self.flush)

    def arrived(self, session: "Session") -> None:
        """A client was admitted. If it was here before, its posts are its own again."""
        self.present[session.session] = session
        self.retained.returned(session.session)

    def answer_when_known(self, conn: int, number: int, value: int) -> None:
        """Send the RESULT of a SUBSCRIBE or SERVE when every node knows of it."""
        session = self.sessions.get(conn)

        def known() -> None:
            # The number of a connection that has ended may belong to another client now.
            if session is not None and self.sessions.get(conn) is session:
                self.engine.result(conn, number, Code.OK, value, "")

        self.peers.members.when_known(known)

    def left(self, session: "Session") -> None:
        self.everyone.pop(session, None)
        self.ended[session.scheme, session.why] += 1
        if not self.everyone:
            self.empty.set()

    def ending(self, session: "Session") -> None:
        """End a session once the engine has flushed."""
        self._ending.append(session)

    def unexpected(self, error: Exception, session: "Session | None", what: str) -> None:
        """An error of the broker, not of the client: log it, count it, and end this connection only."""
        self.errors += 1
        log.error("unexpected error in %s; the connection is closed", what, exc_info=error)
        if session is not None:
            session.why = "error"
            session.abort()


def _unsubscribed(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.replays.end(*event[1:])
    hub.events.end(*event[1:])
    return None


def _room(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.retained.room(event[1])
    hub.replays.plan(event[1])
    hub.channels.consumers.room(event[1])
    hub.peers.members.room(event[1])
    return None


def _closed(hub: Hub, event: tuple[Any, ...]) -> Events:
    _, conn, code, text = event
    if session := hub.sessions.get(conn):
        log.debug("client %s (%r) closes: %s %s", session.client, session.name, code, text)
        if hub.present.get(session.session) is session:
            hub.retained.left(session.session)
        hub.channels.consumers.left(conn)
        hub.peers.members.closed(conn, code, text)
        session.why = "client"
        session.end()
    return None


def _stored(hub: Hub, event: tuple[Any, ...]) -> Events:
    channels_manager.stored(hub, event)
    if event[1] in hub.watched:
        hub.peers.streams.stored()
    return None


def _welcomed(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.peers.members.welcomed(*event[1:])
    return None


def _node(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.peers.members.received(*event[1:])
    return None


def _pong(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.peers.members.pong(*event[1:])
    return None


def _synced(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.peers.members.synced(event[1])
    return None


def _conflict(hub: Hub, event: tuple[Any, ...]) -> Events:
    hub.peers.members.conflict(*event[1:])
    return None


def _failed(hub: Hub, event: tuple[Any, ...]) -> Events:
    _, conn, code, text = event
    hub.faults += 1
    if session := hub.sessions.get(conn):
        log.info("client %s (%r, %s) is closed: %s %s", session.client, session.name, session.peer(), code, text)
        session.why, session.fault = reason(code), session.not_understood(text)
        session.end()
    return None


def _paused(hub: Hub, event: tuple[Any, ...]) -> Events:
    if session := hub.sessions.get(event[1]):
        session.pause()
    hub.clock.hurry()
    return None


def _waits(hub: Hub, event: tuple[Any, ...]) -> Events:  # noqa: ARG001, one signature for the table
    """Publishes of this connection wait for a slow receiver; the clock ends that in time."""
    hub.clock.hurry()
    return None


def _read(hub: Hub, event: tuple[Any, ...]) -> Events:
    """Its publishes still wait, everything else is read again."""
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
    """Its frames cause much work: other connections get a turn of the loop first."""
    if session := hub.sessions.get(event[1]):
        session.pause()
        hub.loop.call_soon(hub.go_on, session)
    return None
