"""The hub of a broker: makes its drivers, and leads each event of the engine to the function that handles it.

The server makes it. Drivers get their dependencies by constructor, and don't know the hub.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from busway import _core
from busway.broker import admission
from busway.broker.access.authority import Authority
from busway.broker.access.logins import Logins
from busway.broker.access.refusals import Refusals
from busway.broker.access.revocation import Revocation
from busway.broker.admin import services
from busway.broker.admin.events import ClusterEvents
from busway.broker.admin.rates import RateSampler
from busway.broker.admin.services import AdminServices
from busway.broker.admin.topics import TopicScans
from busway.broker.admission import Generations
from busway.broker.channels.manager import Channels
from busway.broker.clock import Clock
from busway.broker.disk_watch import DiskWatch
from busway.broker.peers import ALONE, Peers
from busway.broker.retained.driver import RetainedDriver
from busway.broker.retained.pin_file import Entry, PinJournal
from busway.broker.runtime import Event, Events, Runtime
from busway.broker.server_list import ServerList
from busway.broker.services.driver import ServicesDriver
from busway.broker.session import Session, reason
from busway.broker.streams.manager import Streams
from busway.broker.streams.replay import Replays
from busway.broker.streams.table import StreamTable
from busway.settings import Settings
from busway.streams import StreamConfig

log = logging.getLogger("busway.broker")


class Hub:
    """The drivers of one broker around its runtime."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        guid: str,
        *,
        fields: bytes = b"",
        pins: PinJournal | None = None,
        found: Iterable[Entry] = (),
        folder: Path | None = None,
        stores: Mapping[str, str] | None = None,
        nodes: "Callable[[Hub], Peers] | None" = None,
        authority: Authority | None = None,
        restart: Callable[[], object] = lambda: None,
    ) -> None:
        """`restart` ends all connections and starts the broker again."""
        self.restart = restart
        runtime = Runtime(self, settings, name, guid, fields=fields, folder=folder, clustered=nodes is not None)
        self.runtime = runtime
        self.loop, self.engine, self.settings = runtime.loop, runtime.engine, settings
        self.name, self.guid, self.folder = name, guid, folder
        self.sessions, self.everyone, self.present = runtime.sessions, runtime.everyone, runtime.present
        self.flush, self.unexpected = runtime.flush, runtime.unexpected
        self.generations = Generations()
        self.events = ClusterEvents(runtime)
        self.authority = authority or Authority()
        self.refusals = Refusals(runtime, self.events.tell)
        self.logins = Logins(runtime, self.authority, self.refusals)
        self.table = table = StreamTable("memory" if folder is None else "disk")
        self.peers = ALONE if nodes is None else nodes(self)
        """The other brokers of its cluster. Each driver below gets the interface that it needs."""
        members = self.peers.members
        self.disk = DiskWatch(runtime, folder, table, self.events)
        self.replays = Replays(runtime, table)
        self.channels = Channels(runtime, table, self.peers.channels, members, self._create_stream)
        self.streams = Streams(
            runtime, table, folder, stores or {}, self.peers.streams, self.channels, self.replays, self.disk
        )
        self.retained = RetainedDriver(runtime, pins, found, fields, self.peers.retained, members, self.replays)
        self.services = ServicesDriver(runtime, self.peers.services)
        self.revocation = Revocation(runtime, self.authority, (_Leases(self.channels), _Posts(self.retained)))
        self.admin = AdminServices(self)
        self.rates = RateSampler(self)
        self.topic_scans = TopicScans(self)
        self.rates = RateSampler(self)
        self.topic_scans = TopicScans(self)
        self.server_list = ServerList(runtime, members)
        self.clock = Clock(runtime, members, (self.retained, self.services, self.streams, self.channels, members))
        self._table: dict[int, Callable[[Event], Events]] = {
            _core.EVENT_HELLO: partial(admission.hello, self),
            _core.EVENT_LOGIN: self.logins.answer,
            _core.EVENT_REFUSED: self.refusals.refused,
            _core.EVENT_SUBSCRIBE: partial(admission.subscribe, self),
            _core.EVENT_UNSUBSCRIBE: self._unsubscribed,
            _core.EVENT_BEHIND: _with_values(self.replays.fell_behind),
            _core.EVENT_ROOM: self._room,
            _core.EVENT_LATER: _with_values(self.streams.later),
            _core.EVENT_STORED: self._stored,
            _core.EVENT_CHANNEL: _with_values(self.channels.consumers.frame),
            _core.EVENT_OWN: _with_values(self.channels.dead_letter_stored),
            _core.EVENT_SERVE: partial(admission.serve, self),
            _core.EVENT_UNSERVE: self.services.unserve,
            _core.EVENT_KEEP: self.retained.keep,
            _core.EVENT_REQUEST: self.services.request,
            _core.EVENT_CANCEL: self.services.cancel,
            _core.EVENT_ACCEPT: self.services.accept,
            _core.EVENT_ANSWER: self.services.answer,
            _core.EVENT_CALL: partial(services.call, self),
            _core.EVENT_WELCOME: _with_values(members.welcomed),
            _core.EVENT_NODE: _with_values(members.received),
            _core.EVENT_PONG: _with_values(members.pong),
            _core.EVENT_SYNCED: _with_values(members.synced),
            _core.EVENT_CONFLICT: _with_values(members.conflict),
            _core.EVENT_PROVIDER: self.services.provider,
            _core.EVENT_ASK: self.services.ask,
            _core.EVENT_CLOSE: self._closed,
            _core.EVENT_FAIL: self._failed,
            _core.EVENT_PAUSE: self._paused,
            _core.EVENT_RESUME: self._resumed,
            _core.EVENT_WAIT: self._waits,
            _core.EVENT_READ: self._read,
            _core.EVENT_YIELD: self._yielded,
        }
        services.register(self.engine)

    def dispatch(self, event: Event) -> Events:
        """Handle one event of the engine. Returns the events that follow from it."""
        return self._table[event[0]](event)

    def arm(self) -> None:
        """Set the alarm to the earliest deadline of all drivers."""
        self.clock.arm()

    async def _create_stream(self, config: StreamConfig) -> object:
        return await self.streams.create(config)

    def forget(self, conn: int) -> None:
        """A connection has ended: release the publishers that it blocked, and answer its requesters."""
        session = self.sessions.pop(conn, None)
        self.engine.disconnect(conn)
        self.retained.forget(conn)
        self.services.forget(conn)
        self.replays.forget(conn)
        self.channels.consumers.forget(conn)
        self.events.forget(conn)
        self.logins.forget(conn)
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

    # Events that concern several drivers.

    def _unsubscribed(self, event: Event) -> Events:
        self.replays.end(*event[1:])
        self.events.end(*event[1:])
        return None

    def _room(self, event: Event) -> Events:
        self.retained.room(event[1])
        self.replays.plan(event[1])
        self.channels.consumers.room(event[1])
        self.peers.members.room(event[1])
        return None

    def _closed(self, event: Event) -> Events:
        _, conn, code, text = event
        if session := self.sessions.get(conn):
            log.debug("client %s (%r) closes: %s %s", session.client, session.name, code, text)
            if self.present.get(session.session) is session:
                self.retained.left(session.session)
            self.channels.consumers.left(conn)
            self.peers.members.closed(conn, code, text)
            session.why = "client"
            session.end()
        return None

    def _stored(self, event: Event) -> Events:
        self.channels.stored(event[1])
        if event[1] in self.runtime.watched:
            self.peers.streams.stored()
        return None

    def _failed(self, event: Event) -> Events:
        _, conn, code, text = event
        self.runtime.faults += 1
        if session := self.sessions.get(conn):
            log.info("client %s (%r, %s) is closed: %s %s", session.client, session.name, session.peer(), code, text)
            session.why, session.fault = reason(code), session.not_understood(text)
            session.end()
        return None

    def _paused(self, event: Event) -> Events:
        if session := self.sessions.get(event[1]):
            session.pause()
        self.clock.hurry()
        return None

    def _waits(self, event: Event) -> Events:  # noqa: ARG002, one signature for the table
        """Publishes of this connection wait for a slow receiver; the clock ends that in time."""
        self.clock.hurry()
        return None

    def _read(self, event: Event) -> Events:
        """Its publishes still wait, everything else is read again."""
        if session := self.sessions.get(event[1]):
            session.resume()
        return None

    def _resumed(self, event: Event) -> Events:
        conn = event[1]
        if session := self.sessions.get(conn):
            session.resume()
            return self.engine.resume(conn)
        return None

    def _yielded(self, event: Event) -> Events:
        """Its frames cause much work: other connections get a turn of the loop first."""
        if session := self.sessions.get(event[1]):
            session.pause()
            self.loop.call_soon(self.runtime.resume, session)
        return None


class _Leases:
    """The leases of clients, for the revocation."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def left(self, session: Session) -> None:
        self._channels.consumers.left(session.conn)


class _Posts:
    """The posts of clients, for the revocation."""

    def __init__(self, retained: RetainedDriver) -> None:
        self._retained = retained

    def left(self, session: Session) -> None:
        self._retained.left(session.session)


def _with_values(function: Callable[..., object]) -> Callable[[Event], None]:
    """A function for the table that passes the values of the event as arguments."""

    def call(event: Event) -> None:
        function(*event[1:])

    return call
