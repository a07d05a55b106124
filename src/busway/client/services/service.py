"""A service: answers the requests on one topic, by a handler or while the program iterates over them.

`Bus.serve()` makes it, and the core passes it the requests. A service sends a reply only on the connection by which its
request arrived: after a lost connection the broker has already failed the request.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from types import CoroutineType
from typing import Any, Final, Self, TypeAlias

from busway._core import Message
from busway.client.connection.connection import Connection
from busway.client.connection.core import END, PARTIAL, Core
from busway.client.connection.delegates import MessageProperties
from busway.client.connection.registration import EAGER, WAIT, Entered, Registration, finish, running
from busway.client.connection.sender import scope_flags
from busway.client.services.ask_callback import AskCallbacks, Willing
from busway.client.services.errors import described, explained
from busway.client.typed.protocol import outgoing
from busway.common.checks import check_callable, check_count, check_type
from busway.common.durations import Duration
from busway.errors import (
    BusError,
    Closed,
    Code,
    Disconnected,
    HandlerError,
    LimitExceeded,
    LocalProtocolError,
)
from busway.settings import Scope, Wait, check_wait

log = logging.getLogger("busway.client")

Responder: TypeAlias = Callable[[Message], object] | Callable[[Message], Awaitable[object]]
"""A user's function that answers requests. If it returns an async generator, each item is one reply."""

Call: TypeAlias = tuple[Connection, int, Message]
"""A request that has arrived: its connection, its call number and its message."""

_SHARED: Final = 0x01
_ASKS: Final = 0x02

_NO_REPLY: Final = object()
"""Stands for a missing reply."""
_BACKLOG: Final = 65_536
"""Most requests that wait for the handler; more are refused."""
_TEXT: Final = 1024
"""Characters of an error's text that are sent if the whole text is too long."""
_WAITING: Final = 128 * 1024
"""Bytes of output that may wait to be written before a service that sends several replies has to wait."""


class Request(MessageProperties):
    """One request of a service without a handler. The program answers it by reply() or fail()."""

    __slots__ = ("_call", "_connection", "_service", "message")

    def __init__(self, service: "Service", connection: Connection, call: int, message: Message) -> None:
        self.message = message
        self._service = service
        self._connection: Connection | None = connection
        self._call = call

    async def reply(self, payload: object = None, *, last: bool = True) -> None:
        """Send a reply. More replies may follow unless this is the `last` one."""
        connection = self._answer(_encoded(self.topic, payload), 0 if last else PARTIAL)
        if last:
            self._connection = None
        else:
            await self._service.room(connection)

    async def fail(self, text: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Answer with an error. The requester gets a HandlerError with this text, code and details."""
        fields = described(code, details, self.topic)
        self._answer(text, 0, Code.HANDLER_ERROR, fields)
        self._connection = None

    def _answer(self, payload: bytes | str, flags: int, code: int = Code.OK, fields: bytes = b"") -> Connection:
        if (connection := self._connection) is None:
            raise LocalProtocolError("this request has been answered already: reply only once, or with last=False")
        self._service.answer(connection, self._call, payload, flags=flags, code=code, fields=fields)
        return connection


def _encoded(topic: str, payload: object) -> bytes | str:
    """The payload of a reply; None is an empty one."""
    if type(payload) is bytes or type(payload) is str:
        return payload
    return b"" if payload is None else outgoing(topic, payload)[1]


class ServiceRegistrar:
    """Encodes SERVE and UNSERVE for one service."""

    noun = "service"

    def __init__(self, core: Core, topic: str, flags: int, queue: deque[Call], *, known: bool) -> None:
        self._core = core
        self._topic = topic
        self._flags = flags
        self._queue = queue
        self._known = known
        """Whether the broker answers the first SERVE only when all nodes know of it."""

    def announce(self, number: int, *, again: bool) -> int:
        return self._core.session.serve(number, self._topic, self._flags | WAIT * (self._known and not again))

    def withdraw(self, number: int) -> int:
        return self._core.session.unserve(number)

    def forget(self, number: int) -> None:
        self._core.services.pop(number, None)

    def drop(self, number: int) -> None:
        """Withdraw a service that was garbage-collected, and fail the requests that wait."""
        core = self._core
        if core.greeted:
            core.session.unserve(number)
            for connection, call, _ in self._queue:
                if connection is core.connection:
                    core.session.reply(call, "the service has ended", code=Code.SERVICE_GONE)


class Service(Entered):
    """Made by `bus.serve(...)`. Without a handler, iterate over it or use recv()."""

    handled: Final = True

    def __init__(
        self,
        core: Core,
        topic: str,
        handler: Responder | None,
        *,
        drain: float,
        shared: bool = False,
        ask: Willing | None = None,
        concurrency: int = 64,
        scope: Scope = "global",
        wait: Wait | None = None,
    ) -> None:
        check_type("topic", topic, str, "a str")
        check_callable("handler", handler)
        check_callable("ask", ask)
        if ask is not None and not shared:
            raise ValueError("ask= needs shared=True: the broker calls ask to choose among shared services")
        check_count("concurrency", concurrency)
        check_wait(wait)
        self.topic = topic
        self.shared = bool(shared)
        self._core = core
        self._drain = drain
        self._handler = handler
        self._concurrency = concurrency
        self._running = 0
        self._starting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._asks = AskCallbacks(core, topic, ask, concurrency)
        self._queue: deque[Call] = deque()
        flags = _SHARED * self.shared | _ASKS * self._asks.wanted | scope_flags(scope)
        registrar = ServiceRegistrar(core, topic, flags, self._queue, known=wait is not None)
        self._registration = Registration(core, registrar, topic, drain)

    async def start(self) -> Self:
        """Register with the broker. Requests are delivered after this."""
        number = self._registration.begin()
        self._core.services[number] = self
        if self._handler is not None:
            self._core.held.add(self)
        try:
            await self._registration.register()
        except BaseException:
            self.ended(None)
            raise
        return self

    async def close(self) -> None:
        """Withdraw it. The handler finishes within the drain time; requests that it did not start are failed."""
        try:
            await self._registration.close(self._finish)
        finally:
            self._core.held.discard(self)

    # Requests that arrive.

    def called(self, connection: Connection, call: int, message: Message) -> None:
        """Handle or queue a request that has arrived."""
        if self._handler is not None and self._running < self._concurrency:
            self._run(self._handler, connection, call, message)
        elif len(self._queue) < _BACKLOG:
            self._queue.append((connection, call, message))
            self._registration.wake()
        else:
            self._reply_error(
                connection,
                call,
                f"the service is busy: {_BACKLOG} requests wait already; try again later",
                Code.TOO_MANY_PENDING,
            )

    def asked(self, connection: Connection, call: int, message: Message) -> None:
        """Answer the broker's ASK whether this service is willing to take a request."""
        self._asks.asked(connection, call, message)

    def answer(
        self,
        connection: Connection,
        call: int,
        payload: bytes | str,
        *,
        flags: int = 0,
        code: int = 0,
        fields: bytes = b"",
    ) -> None:
        """Send a reply on the connection of its request. Raises Disconnected if that connection has ended."""
        core = self._core
        if connection.over or connection is not core.connection:
            if core.state == "closed" or core.forked:
                raise core.unavailable_error()
            raise Disconnected("the connection by which this request arrived is lost, so it can't be answered")
        if alone := self._running <= 1 and not self._queue:
            connection.defer_flush()
        try:
            core.session.reply(call, payload, code=code, flags=flags, fields=fields)
        except BaseException:
            connection.flush()
            raise
        connection.frame_encoded(alone=alone)

    async def room(self, connection: Connection) -> None:
        """Wait after one of several replies, if much output waits to be written."""
        if self._core.session.waiting > _WAITING:
            connection.flush()
            if connection.paused:
                await connection.room()
            else:
                await asyncio.sleep(0)

    def _run(self, handler: Responder, connection: Connection, call: int, message: Message) -> None:
        try:
            result = handler(message)
        except Exception as error:  # noqa: BLE001, reported and sent to the requester
            self._failed(connection, call, error)
            return
        kind = type(result)
        if kind is not CoroutineType and not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
            self._reply(connection, call, result)
            return
        self._running += 1
        task = asyncio.Task(self._await(connection, call, result), loop=self._core.loop, **EAGER)
        if not task.done():
            self._tasks.add(task)

    async def _await(self, connection: Connection, call: int, result: Any) -> None:
        try:
            if type(result) is CoroutineType or inspect.isawaitable(result):
                result = await result
            if type(result) is not bytes and inspect.isasyncgen(result):
                result = await self._reply_each(connection, call, result)
        except asyncio.CancelledError:
            self._reply_error(connection, call, "the service has stopped", Code.SERVICE_GONE)
            raise
        except Exception as error:  # noqa: BLE001, reported and sent to the requester
            self._failed(connection, call, error)
        else:
            self._reply(connection, call, result)
        finally:
            self._running -= 1
            self._tasks.discard(asyncio.current_task())  # a done callback would cost a turn of the loop
            if self._queue and not self._starting:
                self._run_queued()

    def _run_queued(self) -> None:
        """Start queued requests. A task that ends as soon as it starts does not call this again while it runs."""
        assert self._handler is not None
        self._starting = True
        try:
            while self._queue and self._running < self._concurrency:
                connection, call, message = self._queue.popleft()
                if not connection.over:  # else the broker has failed the request
                    self._run(self._handler, connection, call, message)
        finally:
            self._starting = False

    async def _reply_each(self, connection: Connection, call: int, items: AsyncGenerator[object, Any]) -> object:
        """Send the items of an async generator as replies, except the last one, which is returned."""
        last: object = _NO_REPLY
        async with aclosing(items):
            try:
                async for item in items:
                    part, last = last, item
                    if not await self._reply_part(connection, call, part):
                        return _NO_REPLY
            except Exception:
                part, last = last, _NO_REPLY
                await self._reply_part(connection, call, part)
                raise
        return last

    async def _reply_part(self, connection: Connection, call: int, item: object) -> bool:
        """Send one of several replies. False: the connection has ended."""
        if item is not _NO_REPLY:
            payload = _encoded(self.topic, item)
            try:
                self.answer(connection, call, payload, flags=PARTIAL)
            except (Closed, Disconnected):
                return False
            await self.room(connection)
        return True

    def _reply(self, connection: Connection, call: int, result: object) -> None:
        try:
            if result is _NO_REPLY:
                self.answer(connection, call, b"", flags=END)
            else:
                self.answer(connection, call, _encoded(self.topic, result))
        except (Closed, Disconnected):
            log.debug("a reply of the service %r was dropped: its connection was lost", self.topic)
        except Exception as error:  # noqa: BLE001, a result that can't be sent is an error of the handler
            self._failed(connection, call, error)

    def _failed(self, connection: Connection, call: int, error: Exception) -> None:
        if isinstance(error, HandlerError):  # raised on purpose, with a text for the requester
            fields = described(error.code, error.details, self.topic)
            self._reply_error(connection, call, error.reason, Code.HANDLER_ERROR, fields)
            return
        self._core.report(error, "the service", self.topic)
        text, code, details = explained(error)
        self._reply_error(connection, call, text, Code.HANDLER_ERROR, described(code, details, self.topic))

    def _reply_error(self, connection: Connection, call: int, text: str, code: int, fields: bytes = b"") -> None:
        try:
            try:
                self.answer(connection, call, text, code=code, fields=fields)
            except LimitExceeded as error:
                log.warning("an error of the service %r is sent without its details: %s", self.topic, error)
                self.answer(connection, call, text[:_TEXT], code=code)
        except BusError as error:
            log.debug("an error of the service %r could not be sent: %s", self.topic, error)

    # Iterating, for services without a handler.

    async def recv(self, timeout: Duration | None = None) -> Request:
        """The next request. Raises Timeout, Closed, or the error that ended the service."""
        while (request := self._next()) is None:
            await self._registration.wait_open(timeout)
        return request

    def __aiter__(self) -> AsyncIterator[Request]:
        return self._each()

    async def _each(self) -> AsyncGenerator[Request, None]:
        while True:
            if (request := self._next()) is not None:
                yield request
            elif not await self._registration.wait(None):
                return

    def _next(self) -> Request | None:
        if self._handler is not None:
            raise LocalProtocolError(
                "this service has a handler, which gets its requests: leave the handler out to iterate or recv()"
            )
        while self._queue:
            connection, call, message = self._queue.popleft()
            if not connection.over:  # else the broker has failed the request
                return Request(self, connection, call, message)
        return None

    # Inside.

    def announce(self) -> int:
        """Encode the frame that registers it, at first or after a reconnect. Returns the frame's number."""
        return self._registration.announce()

    def restored(self) -> None:
        """After a reconnect a service needs nothing more."""

    def ended(self, error: BusError | None) -> None:
        """End it. Its consumers get the error, and its requests are cancelled."""
        self._core.held.discard(self)
        self._registration.end(error)
        self._queue.clear()
        for task in self._tasks | self._asks.close():
            task.cancel()

    async def _finish(self) -> None:
        deadline = self._core.loop.time() + self._drain
        asks = running(self._core, self._asks.close())
        for task in asks:
            task.cancel()  # the broker has chosen another service
        try:
            while (others := running(self._core, self._tasks)) and (left := deadline - self._core.loop.time()) > 0:
                await asyncio.wait(others, timeout=left)  # a queued request may have started meanwhile
        finally:
            while self._queue:
                connection, call, _ = self._queue.popleft()
                self._reply_error(connection, call, "the service has stopped", Code.SERVICE_GONE)
            await finish(running(self._core, self._tasks) | asks, 0.0, f"service {self.topic!r}")
