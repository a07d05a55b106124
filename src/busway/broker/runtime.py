"""The runtime of a broker: the native engine, the event loop, the sessions and the counters.

The drivers of the broker and of the cluster get it by constructor, and reach the engine and the clients through it.
It knows no driver: the hub carries out events and deadlines, as `Handler`.

A session is known by the engine's number of its connection. Nothing that a client sends may raise through here: an
unexpected error ends that client's connection, is logged with its traceback, and is counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from busway._core import Engine
from busway.common import environment
from busway.errors import Code
from busway.settings import MiB, Settings
from busway.transport.buffers import HIGH_WATER

if TYPE_CHECKING:
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

Event: TypeAlias = tuple[Any, ...]
Events: TypeAlias = list[Event] | None

_POOL: Final = 2 * MiB
"""Bytes of written buffers that the engine reuses. They and the transport's buffer count for the outbox limit, so a stuck
connection costs no more than the limit."""


class Handler(Protocol):
    """What the runtime asks of the hub."""

    def dispatch(self, event: Event) -> Events:
        """Handle one event of the engine. Returns the events that follow from it."""

    def forget(self, conn: int) -> None:
        """A connection has ended: have every driver forget it."""

    def arm(self) -> None:
        """A deadline has changed: set the alarm to the earliest one."""


class Runtime:
    """The engine, the event loop, the sessions and the counters of one broker."""

    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        name: str,
        guid: str,
        *,
        fields: bytes = b"",
        folder: Path | None = None,
        clustered: bool = False,
    ) -> None:
        self._handler = handler
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
            links=settings.interest if clustered else 0,
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
        self.strangers: dict[Session, None] = {}
        """Sessions that are not admitted yet, in the order in which they came."""
        self.dropped_strangers = 0
        """Connections that were closed because too many had not logged in."""
        self.watched: set[int] = set()
        """Numbers of the streams whose new records are reported to the cluster, with or without channels."""
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
        self.waited_for = inf
        """Before this time no client has moved after a sleep. By the clock that also runs while the host sleeps."""
        self._awake = 0.0
        self._ending: list[Session] = []

    # Events.

    def handle(self, events: Events) -> None:
        """Handle events until there are none, then end the connections that were closed."""
        dispatch = self._handler.dispatch
        while events:
            more: list[Event] = []
            for event in events:
                try:
                    if follow := dispatch(event):
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

    def arm(self) -> None:
        """A driver has a new deadline: set the alarm."""
        self._handler.arm()

    def unexpected(self, error: Exception, session: "Session | None", what: str) -> None:
        """An error of the broker, not of the client: log it, count it, and end this connection only."""
        self.errors += 1
        log.error("unexpected error in %s; the connection is closed", what, exc_info=error)
        if session is not None:
            session.why = "error"
            session.abort()

    def answer_when(self, ready: Callable[[Callable[[], None]], None], conn: int, number: int, value: int) -> None:
        """Send the RESULT of a SUBSCRIBE or SERVE as soon as `ready` calls the function that it gets."""
        session = self.sessions.get(conn)

        def answer() -> None:
            # The number of a connection that has ended may belong to another client now.
            if session is not None and self.sessions.get(conn) is session:
                self.engine.result(conn, number, Code.OK, value, "")

        ready(answer)

    # Sessions.

    def joined(self, session: "Session") -> None:
        """A connection has begun."""
        self.sessions[session.conn] = session
        self.everyone[session] = None
        self.opened[session.scheme] += 1
        self.empty.clear()
        if len(self.sessions) > self.settings.connections:
            self.refused += 1
            session.close(Code.TOO_MANY_CONNECTIONS, f"{self.settings.connections} connections are the limit here")
            self.flush()
        elif session.scheme != "memory" and not session.dialled:
            self.strangers[session] = None
            if len(self.strangers) > self.settings.logins:
                self._drop_stranger()

    def _drop_stranger(self) -> None:
        """Close the connection that has waited longest for its login: a client needs little time for that."""
        oldest = next(iter(self.strangers))
        del self.strangers[oldest]
        self.dropped_strangers += 1
        if self.dropped_strangers & (self.dropped_strangers - 1) == 0:  # the first, second, fourth, eighth ...
            log.warning(
                "more than %d connections have not logged in: %d were closed so far",
                self.settings.logins,
                self.dropped_strangers,
            )
        oldest.close(Code.TOO_MANY_CONNECTIONS, "too many connections have not logged in")
        self.flush()

    def resume(self, session: "Session") -> None:
        """Read a session again after it was paused, unless the connection has ended."""
        if self.sessions.get(session.conn) is session:
            session.resume()
            self.handle(self.engine.resume(session.conn))

    def ending(self, session: "Session") -> None:
        """End a session once the engine has flushed."""
        self._ending.append(session)

    def forget(self, conn: int) -> None:
        """The number of a connection is free from now on."""
        self._handler.forget(conn)

    def left(self, session: "Session") -> None:
        """A connection has ended."""
        self.everyone.pop(session, None)
        self.strangers.pop(session, None)
        self.ended[session.scheme, session.why] += 1
        if not self.everyone:
            self.empty.set()

    # Sleep of the process or of its host.

    def expect(self, seconds: float) -> None:
        """The broker is awake now, and clients may move to another node if it does not run for so many seconds."""
        self._awake = environment.boottime()
        self.waited_for = self._awake + seconds

    def check_sleep(self) -> None:
        """Abort the connections of all clients if this broker has slept for so long that they may have moved.

        After a sleep the event loop may read before it runs its timers, so sessions call this before they read. Clients
        in this process have slept, too, and links have their own check.
        """
        if (now := environment.boottime()) <= self.waited_for:
            return
        slept, self.waited_for = now - self._awake, inf  # until the next beat, which is due
        sessions = [
            session for session in self.everyone if session.accepted and not session.node and session.scheme != "memory"
        ]
        for session in sessions:
            session.why, session.fault = "idle", f"this broker slept for {slept:.3g} s"
            session.abort()
        log.warning("this broker slept for %.3g s: %d clients have to reconnect", slept, len(sessions))
