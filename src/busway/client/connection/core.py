"""Shared state of one client: its native session, its current connection, its registrations and its pending answers.

Every other module of the client uses the Core. The connection passes it the session's events, and one table dispatches
each event to its method. The lifecycle makes the connections, and the Bus is the public API.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from busway import _core
from busway._core import Session
from busway.client.connection.connection import Connection
from busway.client.connection.events import Event, EventDispatcher
from busway.client.connection.flow_control import FlowControl
from busway.client.connection.log_lines import LogLines
from busway.client.connection.offline_buffer import OfflineBuffer
from busway.client.connection.pending import Pending
from busway.common import environment
from busway.common.checks import check_type
from busway.errors import (
    BusError,
    Closed,
    Code,
    Disconnected,
    Forked,
    LocalProtocolError,
    RemoteProtocolError,
    from_code,
    from_reply,
)
from busway.fields import Fields, encode_fields
from busway.positions import Position
from busway.settings import Identity, draw_secret, session_of

if TYPE_CHECKING:
    from busway.client.connection.registration import Receiver, Registrant, Registration
    from busway.client.durable.publisher import DurablePublisher
    from busway.client.services.gather import Gathering
    from busway.client.services.service import Service

log = logging.getLogger("busway.client")

State: TypeAlias = Literal["connecting", "connected", "lost", "closed"]
ErrorHook: TypeAlias = Callable[[BaseException], object]
Row: TypeAlias = tuple[Any, ...]

PARTIAL: Final = 0x08
"""The flag of a REPLY that is followed by others."""
END: Final = 0x10
"""The flag of a REPLY that carries no message and only ends the replies."""


class Core:
    """Shared state of one client. All its methods but drop() run in the event loop that the client was opened in."""

    loop: asyncio.AbstractEventLoop
    pending: Pending

    def __init__(
        self, on_error: ErrorHook | None, fields: Fields | None = None, identity: Identity | None = None
    ) -> None:
        check_type("identity", identity, (Identity, NoneType), "an Identity or None")
        self.identity = identity
        self.name = ""
        """The client's own name."""
        self.secret = identity.secret if identity is not None else draw_secret()
        """Shown to brokers only; it is in no message, log line or listing."""
        self.session_id = session_of(self.secret)
        self.session = Session(self.session_id)
        self._fields = {} if fields is None else dict(_checked(fields))
        self._packed = encode_fields(self._fields)
        self.session.defaults(self._packed)
        self.state: State = "connecting"
        self.connection: Connection | None = None
        self.open = False
        """Whether publishes, requests and subscriptions may be sent."""
        self.broker_stopping = False
        """The broker has announced that it will stop."""
        self.closing = False
        """The user closes this client, so the end of the connection is not a loss."""
        self.error: BusError | None = None
        self.events = EventDispatcher()
        self.log_lines = LogLines(lambda: environment.perf_counter())  # noqa: PLW0108, simulations replace it
        self.offline_buffer = OfflineBuffer()
        self.flow_control = FlowControl(self.session, lambda: self.connection is not None and self.connection.stopped)
        self.subscriptions: WeakValueDictionary[int, Receiver] = WeakValueDictionary()
        """Subscriptions and channels by id. One that the program drops without closing it ends."""
        self.services: WeakValueDictionary[int, Service] = WeakValueDictionary()
        self.held: set[Registrant | Registration] = set()
        """Strong references to registrations in use: they have a handler, or a task waits for them."""
        self.durable_publisher: DurablePublisher | None = None
        self.gathering: WeakValueDictionary[int, Gathering[Any]] = WeakValueDictionary()
        """Requests with several replies, by number. One that the program drops is not waited for."""
        self.welcome: asyncio.Future[tuple[int, bytes]] | None = None
        """The version and the map of the WELCOME that a handshake waits for."""
        self.challenge: asyncio.Future[bytes] | None = None
        """The map of the CHALLENGE that may come before the WELCOME."""
        self.on_lost: Callable[[Connection, BusError], None] | None = None
        self.on_servers: Callable[[bytes, bool], None] | None = None
        self.errors = 0
        self.closers: set[asyncio.Task[Any] | None] = set()
        """Tasks that wait for the end of this client. It does not wait for a handler that is among them."""
        self.grace = 0.0
        """Seconds for which the broker retains the posts of a client that lost its connection."""
        self.broker = ""
        """The guid of the server that this client is connected to."""
        self.forked = False
        self._on_error = on_error
        self._ids = 0
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._connection_waiters: list[asyncio.Future[None]] = []
        self._tokens = 0
        self._table: dict[int, Callable[[Row], None]] = {
            _core.EVENT_READY: self._ready,
            _core.EVENT_FULL: self._full,
            _core.EVENT_FLOW: self._flow,
            _core.EVENT_DOUBT: self._doubt,
            _core.EVENT_REPLY: self._reply,
            _core.EVENT_RESULT: self._result,
            _core.EVENT_CALL: self._call,
            _core.EVENT_ASK: self._ask,
            _core.EVENT_MISSED: self._missed,
            _core.EVENT_STORED: self._stored,
            _core.EVENT_GAP: self._gap,
            _core.EVENT_ENDED: self._ended,
            _core.EVENT_PONG: self._pong,
            _core.EVENT_CHALLENGE: self._challenge,
            _core.EVENT_WELCOME: self._welcome,
            _core.EVENT_CLOSE: self._close,
            _core.EVENT_AWAY: self._away,
            _core.EVENT_SERVERS: self._servers,
        }
        _alive.add(self)

    def start(self) -> None:
        """Bind the client to the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.pending = Pending(self.loop, self.session.cancel)

    # Called by the other modules of the client.

    def pack(self, fields: Fields | None) -> bytes:
        """The encoded fields of a message: the client's own fields, overridden by the given ones."""
        if fields is None:
            return self._packed
        return encode_fields({**self._fields, **_checked(fields)})

    def usable(self) -> Connection:
        """The connection, if messages may be sent. Raises unavailable_error() otherwise."""
        if not self.open or self.connection is None:
            raise self.unavailable_error()
        return self.connection

    async def wait_usable(self) -> Connection:
        """Wait until messages may be sent, and return the connection. Raises if the client will not connect again."""
        while not self.open or self.connection is None:
            if self.state not in {"connected", "lost"} or self.closing or self.forked:
                raise self.unavailable_error()
            future = self.loop.create_future()
            self._connection_waiters.append(future)
            await future
        return self.connection

    def wake(self) -> None:
        """Wake the callers of wait_usable(); each checks the state again."""
        waiters, self._connection_waiters = self._connection_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def unavailable_error(self) -> BusError:
        """The error that tells why no message can be sent now."""
        if self.forked:
            return Forked(f"this bus belongs to the parent process: connect again in the child process {os.getpid()}")
        if self.state == "closed" or self.closing:
            error = Closed(f"this bus is closed: {self.error}" if self.error else "this bus is closed")
            error.__cause__ = self.error
            return error
        if self.state == "connecting":
            return Disconnected("this bus is not connected yet: enter it with `async with` or await it")
        return Disconnected(
            "the broker is stopping" if self.broker_stopping else "there is no connection at the moment"
        )

    @property
    def greeted(self) -> bool:
        """Whether there is a connection over which the broker has sent its WELCOME."""
        return self.connection is not None and self.connection.greeted

    def registrants(self) -> "list[Registrant]":
        """Every subscription, channel and service."""
        return [*self.subscriptions.values(), *self.services.values()]

    def drop(self, withdraw: Callable[[], None]) -> None:
        """Withdraw a garbage-collected registration. Any thread may call this; `withdraw` runs in the loop's thread."""
        with suppress(RuntimeError, AttributeError):  # a closed loop has no open connection
            self.loop.call_soon_threadsafe(withdraw)

    def next_id(self) -> int:
        """A new id for a subscription, channel or service."""
        self._ids += 1
        return self._ids

    def answer(self, number: int, timeout: float | None = None, topic: str = "") -> "asyncio.Future[Any]":
        """A future of the answer to a frame that was just encoded."""
        return self.pending.add(number, timeout, topic)

    async def result(self, number: int) -> int:
        """Wait for the RESULT of a frame that was just encoded, and return its value."""
        try:
            value: int = await self.answer(number)
        finally:
            self.pending.pop(number)
        return value

    async def ping(self, connection: Connection) -> float:
        """Send a PING and return the seconds until its PONG. The broker has then handled every earlier frame."""
        self._tokens += 1
        token = self._tokens
        future = self._pongs[token] = self.loop.create_future()
        started = environment.perf_counter()  # the loop may update its clock only once per iteration
        self.session.ping(token)
        connection.flush()
        try:
            await future
        finally:
            self._pongs.pop(token, None)
        return environment.perf_counter() - started

    def report_room(self) -> None:
        """Tell the broker which full subscriptions have room again. Called when messages were taken out of an inbox."""
        if self.flow_control:
            self.flow_control.relieve()

    def report(self, error: BaseException, what: str, topic: str = "") -> None:
        """Report an error that no caller can receive, such as one of a user's handler: log, counter, event and hook."""
        self.errors += 1
        self.log_lines.failed(error, what, topic)
        self.events.emit(Event(kind="error", error=error, topic=topic))
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                log.exception("on_error raised")

    # Called by the connection.

    def handle(self, events: list[Row]) -> None:
        """Dispatch the session's events."""
        table = self._table
        for event in events:
            table[event[0]](event)

    def lost(self, connection: Connection, error: BusError) -> None:
        """Report the end of a connection to the lifecycle, if it is the current one."""
        if connection is self.connection and self.on_lost is not None:
            self.on_lost(connection, error)

    def detach(self, error: BusError) -> int:
        """Remove the connection and fail every pending answer. Returns the number of bytes that were never written."""
        unsent = self.session.waiting + (self.connection.unwritten if self.connection is not None else 0)
        self.connection = None
        self.open = False
        self.broker_stopping = False
        self.session.attach(None)
        if self.durable_publisher is not None:
            self.durable_publisher.disconnected(self.broker)
        if self.welcome is not None and not self.welcome.done():
            self.welcome.set_exception(error)
        lost = Disconnected(error.reason, code=error.code)
        self.pending.fail(lost)
        for gathering in list(self.gathering.values()):
            gathering.end(Disconnected(error.reason, code=error.code))
        pongs, self._pongs = self._pongs, {}
        for future in pongs.values():
            if not future.done():
                future.set_exception(Disconnected(error.reason, code=error.code))
        return unsent

    def _ready(self, event: Row) -> None:
        if (subscription := self.subscriptions.get(event[1])) is not None:
            subscription.arrived()

    def _full(self, event: Row) -> None:
        subscription = self.subscriptions.get(event[1])
        if subscription is None or subscription.policy not in {"block", "disconnect"}:
            return
        if subscription.full:
            self.flow_control.begin(event[1], subscription)
        else:  # the messages that filled it were taken out again
            self.flow_control.relieve()

    def _doubt(self, event: Row) -> None:
        """Wait before retained messages that are missing after a reconnect count as withdrawn.

        After a restart of the broker their publishers may still reconnect, and they have the grace time for it.
        """
        self.loop.call_later(max(self.grace, 0.0), self._settle, self.connection, event[1])

    def _settle(self, connection: Connection | None, sub: int) -> None:
        # A newer connection repeats this check itself.
        if connection is None or connection is not self.connection:
            return
        if (subscription := self.subscriptions.get(sub)) is not None and self.session.withdraw_missing(sub):
            subscription.arrived()

    def _flow(self, event: Row) -> None:
        if self.connection is not None:
            self.connection.stop(stop=event[1])

    def _reply(self, event: Row) -> None:
        _, number, code, flags, message = event
        if flags & PARTIAL and number in self.pending:
            self.pending.hold(number, message)
            return
        future, part = self.pending.pop(number), self.pending.held(number)
        if future is None:
            if (gathering := self.gathering.get(number)) is not None:
                gathering.replied(code, flags, message)
            return  # without a gathering the request was cancelled or timed out
        if future.done():
            return
        if code == 0:
            future.set_result(part if flags & END and part is not None else message)
        else:
            future.set_exception(from_reply(code, message.text, message.fields))

    def _result(self, event: Row) -> None:
        _, number, code, value, text = event
        future = self.pending.pop(number)
        if future is not None:
            if not future.done():
                if code == 0:
                    future.set_result(value)
                else:
                    future.set_exception(from_code(code, text))
        elif self.durable_publisher is not None and self.durable_publisher.refused(number, code, text):
            return
        elif code not in {Code.OK, Code.UNKNOWN}:  # UNKNOWN answers the withdrawal of a refused registration
            error = from_code(code, text)
            log.warning("the broker refused a message: %s", error)
            self.events.emit(Event(kind="rejected", error=error))

    def _call(self, event: Row) -> None:
        _, service, call, message = event
        if (found := self.services.get(service)) is not None and self.connection is not None:
            found.called(self.connection, call, message)
        else:
            self.session.reply(call, "the service has ended", code=Code.SERVICE_GONE)

    def _ask(self, event: Row) -> None:
        _, service, call, message = event
        if (found := self.services.get(service)) is not None and self.connection is not None:
            found.asked(self.connection, call, message)
        else:
            self.session.accept(call, Code.REFUSED)

    def _missed(self, event: Row) -> None:
        _, sub, count = event
        subscription = self.subscriptions.get(sub)
        pattern = subscription.label if subscription is not None else ""
        self.log_lines.missed(pattern, count, "its queue was full")
        self.events.emit(Event(kind="missed", topic=pattern, count=count))

    def _stored(self, event: Row) -> None:
        if self.durable_publisher is not None:
            self.durable_publisher.stored(*event[1:6])

    def _gap(self, event: Row) -> None:
        _, sub, (broker, stream), begin, end = event
        if (subscription := self.subscriptions.get(sub)) is not None:
            subscription.gap(Position(broker, stream, begin), end - begin)

    def _ended(self, event: Row) -> None:
        _, number, code, text = event
        if (channel := self.subscriptions.get(number)) is not None:
            error = from_code(code, text)
            self.events.emit(Event(kind="rejected", topic=channel.label, error=error))
            channel.ended(error)

    def _pong(self, event: Row) -> None:
        future = self._pongs.pop(event[1], None)
        if future is not None and not future.done():
            future.set_result(None)

    def _challenge(self, event: Row) -> None:
        if self.challenge is None or self.challenge.done():
            raise RemoteProtocolError("the server sent a CHALLENGE that this client did not ask for")
        self.challenge.set_result(event[1])

    def _welcome(self, event: Row) -> None:
        if self.welcome is not None and not self.welcome.done():
            self.welcome.set_result((event[1], event[2]))

    def _close(self, event: Row) -> None:
        _, code, text = event
        reason = text or "the broker closed the connection"
        error = LocalProtocolError(reason) if code == Code.PROTOCOL else from_code(code, reason)
        if self.connection is not None:
            self.connection.finish(error)

    def _away(self, event: Row) -> None:  # noqa: ARG002, one signature for the table
        self.broker_stopping = True
        self.open = False
        if self.connection is not None:
            self.connection.update()
            self.connection.wake()

    def _servers(self, event: Row) -> None:
        if self.on_servers is not None:
            self.on_servers(event[1], event[2])


def _checked(fields: Fields) -> Fields:
    check_type("fields", fields, Mapping, "a dict or None")
    return fields


_alive: WeakSet[Core] = WeakSet()


def _after_fork() -> None:
    """Close every client in a forked child, which must not use its parent's connections."""
    for core in list(_alive):
        if core.state != "closed":
            core.forked = True
            core.state = "closed"
            core.open = False
            core.connection = None
            core.session.attach(None)


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """End the clients of a loop that never runs again, so that they can be garbage-collected. Simulations call this."""
    for core in list(_alive):
        if getattr(core, "loop", None) is loop:
            core.connection = None
            core.session.attach(None)
            for registrant in core.registrants():
                registrant.ended(None)


os.register_at_fork(after_in_child=_after_fork)
