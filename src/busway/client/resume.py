"""The client's life: reach a server, greet it, restore what was there, and do it again when the connection is lost."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import PROTOCOL, __version__
from busway.checks import check_seconds, check_type
from busway.client.connection import Connection
from busway.client.core import Core
from busway.client.events import Event
from busway.client.keeping import Posts
from busway.client.schedule import Schedule
from busway.client.sending import PUBLISH
from busway.errors import (
    BusError,
    Closed,
    Code,
    ConnectFailed,
    Disconnected,
    Rejected,
    RemoteProtocolError,
    SlowConsumer,
    Timeout,
)
from busway.settings import TLS
from busway.transport import dial, parse

log = logging.getLogger("busway.client")

Credentials: TypeAlias = str | bytes | Callable[[], str | bytes] | None

_FINAL: Final = {Code.UNAUTHORIZED, Code.VERSION, Code.SESSION_TAKEN, Code.FORBIDDEN}
"""Codes after which trying again changes nothing."""
_STEADY: Final = 1.0
"""Seconds a connection must have lived for the schedule to begin anew, so that a server which closes at once isn't stormed."""


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**32)]


class Limits(msgspec.Struct, frozen=True):
    frame: _Size
    topic: _Size
    fields: _Size
    topics: _Size


class Welcome(msgspec.Struct, frozen=True):
    """What this side needs of the map of WELCOME."""

    limits: Limits
    heartbeat: Annotated[float, msgspec.Meta(gt=0)]
    servers: list[str] = []
    grace: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Life:
    """Driver of the connections of one core, one after the other."""

    def __init__(
        self,
        core: Core,
        posts: Posts,
        urls: Sequence[str],
        *,
        name: str,
        timeout: float,
        reconnect: Sequence[float] | None,
        jitter: float,
        tls: TLS | None,
        credentials: Credentials,
    ) -> None:
        check_type("name", name, str, "a str")
        check_seconds("timeout", timeout, zero=False)
        check_type("tls", tls, (TLS, NoneType), "a busway.TLS or None")
        if not callable(credentials):
            check_type("credentials", credentials, (str, bytes, NoneType), "a str, bytes, a function or None")
        self.url = ""
        self.server: dict[str, Any] = {}
        self._core = core
        self._posts = posts
        self._urls = list(urls)
        for url in urls:
            parse(url)  # a wrong one is found here, where it was given
        self._name = name
        self._timeout = timeout
        self._schedule = Schedule(reconnect, jitter, random.random)
        self._tls = tls
        self._credentials = credentials
        self._servers: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._since = 0.0
        core.when_lost = self._lost

    async def open(self) -> None:
        """The first connection, within the timeout."""
        core = self._core
        core.start()
        try:
            await self._reach(self._timeout)
        except BaseException as error:
            self.end(error if isinstance(error, BusError) else None)
            raise
        self._established()
        core.events.tell(Event(kind="connected", url=self.url))

    def end(self, error: BusError | None = None) -> None:
        """There will be no further connection. Without an error this is what the user wanted."""
        core = self._core
        if core.state == "closed":
            return
        core.state = "closed"
        core.error = error
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if core.connection is not None:
            core.connection.discard()
            core.detach(error or Closed("this bus is closed"))
        if count := core.waiting.clear():
            log.error("%d buffered messages were never sent", count)
            core.events.tell(
                Event(kind="error", count=count, error=Disconnected("closed before the connection came back"))
            )
        for part in core.parts():
            part.ended(error)
        self._posts.end(core.why_not())
        if core.unstored is not None:
            core.unstored.end(core.why_not())
        core.wake()
        core.holding.stop()
        core.events.tell(Event(kind="closed", url=self.url, error=error))
        core.events.end()

    async def restored(self) -> None:
        """Return when there is a connection again or never will be."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _lost(self, connection: Connection, error: BusError) -> None:
        core = self._core
        established = core.state == "connected"
        unsent = core.detach(error)
        if core.closing or not established:
            return  # wanted by the user, or dealt with by the attempt that made this connection
        if isinstance(error, SlowConsumer):
            for subscription in list(core.subscriptions.values()):
                if subscription.policy == "disconnect":
                    subscription.ended(SlowConsumer(error.reason, missed=subscription.missed))
        core.state = "lost"
        log.info("%s: %s", connection.url, error)
        core.events.tell(Event(kind="lost", url=connection.url, error=error, unsent=unsent))
        if not self._schedule or error.code in _FINAL:
            self.end(error)
            return
        self._task = core.loop.create_task(self._come_back(unsent), name="busway reconnect")

    async def _come_back(self, unsent: int) -> None:
        core = self._core
        lost = core.loop.time()
        attempts = 0
        if lost - self._since >= _STEADY:
            self._schedule.begin()
        while True:
            await asyncio.sleep(self._schedule.next())
            attempts += 1
            try:
                await self._reach(self._timeout)
            except (BusError, OSError) as error:
                log.debug("attempt %d: %s", attempts, error)
                if isinstance(error, BusError) and error.code in _FINAL:
                    self.end(error)
                    return
            except Exception as error:
                log.exception("reconnecting failed in an unexpected way")
                self.end(Disconnected(f"{type(error).__name__}: {error}"))
                return
            else:
                break
        self._task = None
        self._established()
        downtime = core.loop.time() - lost
        core.events.tell(Event(kind="resumed", url=self.url, downtime=downtime, attempts=attempts, unsent=unsent))

    def _established(self) -> None:
        """The server knows everything it has to know: let messages out, those that waited first."""
        core = self._core
        core.state = "connected"
        self._since = core.loop.time()
        for topic, payload, fields in core.waiting.take(self._since):
            try:
                core.session.send(PUBLISH, topic, payload, fields=fields)
            except BusError as refused:  # another server may have other limits
                core.events.tell(Event(kind="rejected", url=self.url, topic=topic, error=refused))
        core.open = True
        if core.connection is not None:
            core.connection.update()
        core.wake()
        if expired := core.waiting.take_expired():
            log.warning("%d buffered messages grew too old", expired)
            error = Timeout(f"{expired} messages waited too long for a connection")
            core.events.tell(Event(kind="error", count=expired, error=error))

    async def _reach(self, timeout: float) -> None:
        """Greet the first server that answers, beginning with the one of last time."""
        urls = list(dict.fromkeys(filter(None, [self.url, *self._urls, *self._servers])))
        deadline = self._core.loop.time() + timeout
        failed: list[BusError] = []
        for position, url in enumerate(urls):
            share = (deadline - self._core.loop.time()) / (len(urls) - position)
            try:
                await self._greet(url, max(share, 0.001))
            except (Disconnected, Rejected, RemoteProtocolError) as error:
                failed.append(error)
            else:
                return
        for reason in failed:
            if not isinstance(reason, ConnectFailed) or reason.code in _FINAL:
                raise reason
        raise ConnectFailed("; ".join(str(reason) for reason in failed)) from failed[0]

    async def _greet(self, url: str, timeout: float) -> None:
        core = self._core
        started = core.loop.time()
        connection = Connection(core, url)
        await dial(parse(url), lambda: connection, tls=self._tls, timeout=timeout)
        core.connection = connection
        core.session.attach(connection.on_output)
        greeting = core.greeting = core.loop.create_future()
        try:
            async with asyncio.timeout(timeout - (core.loop.time() - started)):
                core.session.hello(self._hello())
                connection.flush()
                version, said = await greeting
                welcome = self._welcome(version, said)
                connection.greeted = True
                limits = welcome.limits
                core.session.writable(False)  # publishes come after what is restored
                core.session.open(frame=limits.frame, topic=limits.topic, fields=limits.fields, topics=limits.topics)
                await self._restore(connection)
        except BaseException as error:
            connection.discard()
            core.greeting = None
            if core.connection is connection:
                core.detach(Disconnected("the greeting was broken off"))
            if isinstance(error, TimeoutError) and not isinstance(error, BusError):
                raise ConnectFailed(f"{url}: no answer within {timeout:g} s") from error
            if isinstance(error, Disconnected):
                raise ConnectFailed(f"{url}: {error}", code=error.code) from error
            raise
        finally:
            core.greeting = None
        connection.keep_alive(welcome.heartbeat)
        self.url = url
        core.grace = welcome.grace
        self._servers = [server for server in welcome.servers if _is_address(server)]

    def _hello(self) -> bytes:
        credentials = self._credentials() if callable(self._credentials) else self._credentials
        hello: dict[str, Any] = {
            "name": self._name,
            "session": self._core.session_id,
            "credentials": credentials,
            "agent": f"busway/{__version__}",
        }
        if (identity := self._core.identity) is not None:
            hello["generation"] = identity.generation
        return msgspec.msgpack.encode(hello)

    def _welcome(self, version: int, said: bytes) -> Welcome:
        if version > PROTOCOL:
            raise RemoteProtocolError(f"WELCOME with version {version}", code=Code.VERSION)
        try:
            self.server = msgspec.msgpack.decode(said, type=dict[str, Any])
            return msgspec.msgpack.decode(said, type=Welcome)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"WELCOME: {error}") from error

    async def _restore(self, connection: Connection) -> None:
        """Tell the server every subscription and service, then every post; those it refuses fail visibly."""
        core = self._core
        parts = [part for part in core.parts() if part.live]
        numbers = [part.announce() for part in parts]
        answers = [core.answer(number) for number in numbers]
        try:
            if answers:
                await asyncio.wait(answers)
        finally:
            for number in numbers:
                core.pending.pop(number)
        errors = [answer.exception() for answer in answers]
        for part, error in zip(parts, errors, strict=True):
            if isinstance(error, Disconnected):
                raise error
            if isinstance(error, BusError):
                log.error("%r was refused after the reconnect: %s", part.label, error)
                core.events.tell(Event(kind="rejected", topic=part.label, error=error))
                part.ended(error)
            else:
                part.restored()
        await self._posts.restore()
        if core.unstored is not None:
            core.unstored.restore()
        if core.connection is not connection:
            raise Disconnected("the connection was lost again")


def _is_address(url: str) -> bool:
    try:
        parse(url)
    except ValueError:
        log.warning("the broker told an address that is none: %r", url)
        return False
    return True
