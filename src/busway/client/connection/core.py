"""What the parts of one client share: the native session, the connection of the moment, and who waits for what.

The core turns the session's events into wake-ups by one table. It makes no connection itself (see resume.py) and has
no public face (see bus.py).
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
from busway.client.connection.events import Announcer, Event
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
    from_code,
    from_reply,
)
from busway.fields import Fields, encode_fields
from busway.positions import Position
from busway.settings import Identity, draw_secret, session_of

if TYPE_CHECKING:
    from busway.client.connection.registration import Registration
    from busway.client.durable.publisher import DurablePublisher
    from busway.client.services.gather import Gathering
    from busway.client.services.service import Service
    from busway.client.subscriptions.inbox import InboxReader

log = logging.getLogger("busway.client")

State: TypeAlias = Literal["connecting", "connected", "lost", "closed"]
ErrorHook: TypeAlias = Callable[[BaseException], object]
Row: TypeAlias = tuple[Any, ...]

PARTIAL: Final = 0x08
"""The flag of a REPLY that others follow."""
END: Final = 0x10
"""The flag of a REPLY that is only the end."""


class Core:
    """State of one client; everything runs in the event loop it was opened in."""

    loop: asyncio.AbstractEventLoop
    pending: Pending

    def __init__(
        self, on_error: ErrorHook | None, fields: Fields | None = None, identity: Identity | None = None
    ) -> None:
        check_type("identity", identity, (Identity, NoneType), "an Identity or None")
        self.identity = identity
        self.name = ""
        """As the client calls itself."""
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
        """Publishes, requests and subscriptions may go out."""
        self.away = False
        """The broker has said that it will stop."""
        self.closing = False
        """The user closes this client, so the end of the connection is no loss."""
        self.error: BusError | None = None
        self.events = Announcer()
        self.lines = LogLines(lambda: environment.perf_counter())  # noqa: PLW0108, simulations replace it
        self.waiting = OfflineBuffer()
        self.holding = FlowControl(self.session, lambda: self.connection is not None and self.connection.stopped)
        self.subscriptions: WeakValueDictionary[int, InboxReader] = WeakValueDictionary()
        """Subscriptions and channels. One that the program drops without closing it ends."""
        self.services: WeakValueDictionary[int, Service] = WeakValueDictionary()
        self.held: set[Registration] = set()
        """Subscriptions, channels and services that stay alive by themselves: they have a handler, or a task waits for them."""
        self.unstored: DurablePublisher | None = None
        self.gathering: WeakValueDictionary[int, Gathering[Any]] = WeakValueDictionary()
        """Requests with several replies; one that nobody holds any more is not waited for."""
        self.greeting: asyncio.Future[tuple[int, bytes]] | None = None
        self.when_lost: Callable[[Connection, BusError], None] | None = None
        self.when_told: Callable[[bytes, bool], None] | None = None
        self.errors = 0
        self.closers: set[asyncio.Task[Any] | None] = set()
        """Tasks that wait for the end of this client; if they are handlers, it doesn't wait for them."""
        self.grace = 0.0
        """Seconds for which the broker keeps the posts of a client whose connection is lost."""
        self.broker = ""
        """The guid of the server that it is connected to."""
        self.forked = False
        self._on_error = on_error
        self._ids = 0
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._patient: list[asyncio.Future[None]] = []
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
            _core.EVENT_WELCOME: self._welcome,
            _core.EVENT_CLOSE: self._close,
            _core.EVENT_AWAY: self._away,
            _core.EVENT_SERVERS: self._servers,
        }
        _alive.add(self)

    def start(self) -> None:
        """Take the running loop as the client's own."""
        self.loop = asyncio.get_running_loop()
        self.pending = Pending(self.loop, self.session.cancel)

    # Asked by the parts.

    def pack(self, fields: Fields | None) -> bytes:
        """The fields of a message on the wire: the client's own, and over them those given."""
        if fields is None:
            return self._packed
        return encode_fields({**self._fields, **_checked(fields)})

    def usable(self) -> Connection:
        """The connection, if messages may go out; else the error that says why not."""
        if not self.open or self.connection is None:
            raise self.why_not()
        return self.connection

    async def regained(self) -> Connection:
        """The connection, as soon as messages may go out; the error that says why not if they never will."""
        while not self.open or self.connection is None:
            if self.state not in {"connected", "lost"} or self.closing or self.forked:
                raise self.why_not()
            future = self.loop.create_future()
            self._patient.append(future)
            await future
        return self.connection

    def wake(self) -> None:
        """Messages may go out again, or never will: let those look who wait for it."""
        patient, self._patient = self._patient, []
        for future in patient:
            if not future.done():
                future.set_result(None)

    def why_not(self) -> BusError:
        if self.forked:
            return Forked(f"this bus belongs to the process that forked {os.getpid()}: connect again in the child")
        if self.state == "closed" or self.closing:
            error = Closed(f"this bus is closed: {self.error}" if self.error else "this bus is closed")
            error.__cause__ = self.error
            return error
        if self.state == "connecting":
            return Disconnected("this bus is not connected yet: enter it with `async with` or await it")
        return Disconnected("the broker is going away" if self.away else "there is no connection at the moment")

    @property
    def greeted(self) -> bool:
        """Whether there is a connection over which the broker can be told something."""
        return self.connection is not None and self.connection.greeted

    def parts(self) -> "list[Registration]":
        """Every subscription and service."""
        return [*self.subscriptions.values(), *self.services.values()]

    def drop(self, farewell: Callable[[], None]) -> None:
        """A subscription, channel or service was garbage-collected, in any thread: the loop's thread withdraws it."""
        with suppress(RuntimeError, AttributeError):  # the loop is closed: its connections are, too
            self.loop.call_soon_threadsafe(farewell)

    def next_id(self) -> int:
        """A number for a subscription or service."""
        self._ids += 1
        return self._ids

    def answer(self, number: int, timeout: float | None = None, topic: str = "") -> "asyncio.Future[Any]":
        """The future answer to a frame that was just encoded."""
        return self.pending.add(number, timeout, topic)

    async def result(self, number: int) -> int:
        """The value of the RESULT to a frame that was just encoded."""
        try:
            value: int = await self.answer(number)
        finally:
            self.pending.pop(number)
        return value

    async def ping(self, connection: Connection) -> float:
        """Seconds until the PONG: everything sent before has been handled by then."""
        self._tokens += 1
        token = self._tokens
        future = self._pongs[token] = self.loop.create_future()
        started = environment.perf_counter()  # the loop's clock may be as coarse as a turn
        self.session.ping(token)
        connection.flush()
        try:
            await future
        finally:
            self._pongs.pop(token, None)
        return environment.perf_counter() - started

    def taken(self) -> None:
        """Messages were taken out of an inbox: tell the broker if that made room."""
        if self.holding:
            self.holding.relieve()

    def report(self, error: BaseException, what: str, topic: str = "") -> None:
        """Something went wrong where nobody waits for it, such as in a user's handler: log, count, event, hook."""
        self.errors += 1
        self.lines.failed(error, what, topic)
        self.events.tell(Event(kind="error", error=error, topic=topic))
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                log.exception("on_error raised")

    # Told by the connection.

    def handle(self, events: list[Row]) -> None:
        table = self._table
        for event in events:
            table[event[0]](event)

    def lost(self, connection: Connection, error: BusError) -> None:
        """The connection is over."""
        if connection is self.connection and self.when_lost is not None:
            self.when_lost(connection, error)

    def detach(self, error: BusError) -> int:
        """No connection any more: what waits for an answer fails. Returns the bytes that were never written."""
        unsent = self.session.waiting + (self.connection.unwritten if self.connection is not None else 0)
        self.connection = None
        self.open = False
        self.away = False
        self.session.attach(None)
        if self.unstored is not None:
            self.unstored.left(self.broker)
        if self.greeting is not None and not self.greeting.done():
            self.greeting.set_exception(error)
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
            self.holding.begin(event[1], subscription)
        else:  # what filled it has been taken back
            self.holding.relieve()

    def _doubt(self, event: Row) -> None:
        """After a reconnect not everything that was kept is there again.

        When the broker has been restarted it may be on its way back, so it is given the time that those who posted it have.
        """
        self.loop.call_later(max(self.grace, 0.0), self._settle, self.connection, event[1])

    def _settle(self, connection: Connection | None, sub: int) -> None:
        # Another connection raises the doubt again, or will; this one may have more to restore, which changes nothing of it.
        if connection is None or connection is not self.connection:
            return
        if (subscription := self.subscriptions.get(sub)) is not None and self.session.settle(sub):
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
            return  # else cancelled or timed out in the meantime
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
        elif self.unstored is not None and self.unstored.refused(number, code, text):
            return
        elif code not in {Code.OK, Code.UNKNOWN}:  # UNKNOWN answers the withdrawal of what was refused anyway
            error = from_code(code, text)
            log.warning("the broker refused a message: %s", error)
            self.events.tell(Event(kind="rejected", error=error))

    def _call(self, event: Row) -> None:
        _, service, call, message = event
        if (found := self.services.get(service)) is not None and self.connection is not None:
            found.called(self.connection, call, message)
        else:
            self.session.reply(call, "the service is gone", code=Code.SERVICE_GONE)

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
        self.lines.missed(pattern, count, "its queue was full")
        self.events.tell(Event(kind="missed", topic=pattern, count=count))

    def _stored(self, event: Row) -> None:
        if self.unstored is not None:
            self.unstored.stored(*event[1:6])

    def _gap(self, event: Row) -> None:
        _, sub, (broker, stream), begin, end = event
        if (subscription := self.subscriptions.get(sub)) is not None:
            subscription.gap(Position(broker, stream, begin), end - begin)

    def _ended(self, event: Row) -> None:
        _, number, code, text = event
        if (channel := self.subscriptions.get(number)) is not None:
            error = from_code(code, text)
            self.events.tell(Event(kind="rejected", topic=channel.label, error=error))
            channel.ended(error)

    def _pong(self, event: Row) -> None:
        future = self._pongs.pop(event[1], None)
        if future is not None and not future.done():
            future.set_result(None)

    def _welcome(self, event: Row) -> None:
        if self.greeting is not None and not self.greeting.done():
            self.greeting.set_result((event[1], event[2]))

    def _close(self, event: Row) -> None:
        _, code, text = event
        reason = text or "the broker closed the connection"
        error = LocalProtocolError(reason) if code == Code.PROTOCOL else from_code(code, reason)
        if self.connection is not None:
            self.connection.finish(error)

    def _away(self, event: Row) -> None:  # noqa: ARG002, one signature for the table
        self.away = True
        self.open = False
        if self.connection is not None:
            self.connection.update()
            self.connection.wake()

    def _servers(self, event: Row) -> None:
        if self.when_told is not None:
            self.when_told(event[1], event[2])


def _checked(fields: Fields) -> Fields:
    check_type("fields", fields, Mapping, "a dict or None")
    return fields


_alive: WeakSet[Core] = WeakSet()


def _after_fork() -> None:
    """The child must not speak on its parent's connections."""
    for core in list(_alive):
        if core.state != "closed":
            core.forked = True
            core.state = "closed"
            core.open = False
            core.connection = None
            core.session.attach(None)


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """The clients of a loop that never runs again: have the engine hold nothing of them, so that they can go."""
    for core in list(_alive):
        if getattr(core, "loop", None) is loop:
            core.connection = None
            core.session.attach(None)
            for part in core.parts():
                part.ended(None)


os.register_at_fork(after_in_child=_after_fork)
