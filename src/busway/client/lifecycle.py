"""Lifecycle of one client: connects to a server, performs the handshake, restores registrations, and reconnects.

The bus opens and closes it, and the core reports lost connections and new lists of servers to it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import PROTOCOL, __version__
from busway.authority.credentials import ClientLogin, Credentials
from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.dialer import RECONNECT, Dialer, RetrySchedule
from busway.client.connection.events import Event
from busway.client.connection.sender import PUBLISH
from busway.client.connection.server_list import Listing, ServerList
from busway.client.connection.wait import FINAL, Waits, is_curable, patience
from busway.client.reclaim import Reclaim
from busway.client.retained import Posts
from busway.client.subscriptions.subscription import Subscription
from busway.common import environment
from busway.common.checks import check_seconds, check_type
from busway.common.durations import Duration
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

CallerCredentials: TypeAlias = str | bytes | Callable[[], str | bytes] | None
"""What a client shows to `Settings.authenticate`."""

_STEADY: Final = 1.0
"""Seconds that a connection must last for the retry schedule to start again, for servers that close at once."""


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**32)]


class Limits(msgspec.Struct, frozen=True):
    """The broker's limits in its WELCOME."""

    frame: _Size
    topic: _Size
    fields: _Size
    topics: _Size


class Welcome(msgspec.Struct, frozen=True):
    """The entries of the map of WELCOME that the client uses."""

    limits: Limits
    heartbeat: Annotated[float, msgspec.Meta(gt=0)]
    servers: Listing = []
    grace: Annotated[float, msgspec.Meta(ge=0)] = 0.0


_listing_decoder: Final = msgspec.msgpack.Decoder(Listing)


class Lifecycle:
    """Driver of the connections of one client, one after the other."""

    def __init__(
        self,
        core: Core,
        posts: Posts,
        urls: Sequence[str],
        *,
        name: str,
        timeout: Duration,
        wait: Waits,
        reconnect: Sequence[Duration] | None,
        jitter: float,
        tls: TLS | None,
        credentials: CallerCredentials,
        login: Credentials,
        learn: bool = True,
    ) -> None:
        check_type("name", name, str, "a str")
        timeout = check_seconds("timeout", timeout, zero=False)
        check_type("tls", tls, (TLS, NoneType), "a busway.TLS or None")
        check_type("learn", learn, bool, "True or False")
        if not callable(credentials):
            check_type("credentials", credentials, (str, bytes, NoneType), "a str, bytes, a function or None")
        self.url = ""
        self.server: dict[str, Any] = {}
        self._core = core
        self._posts = posts
        self.directory = ServerList(urls, environment.chance, learn=learn)
        self._name = name
        self._timeout = timeout
        self._wait = patience(wait)
        self._wait_schedule = RetrySchedule(reconnect or RECONNECT, jitter, environment.chance)
        """Delays while the client waits for its first server, also if it does not reconnect."""
        self._closed = asyncio.Event()
        self._schedule = RetrySchedule(reconnect, jitter, environment.chance)
        self._tls = tls
        self._credentials = credentials
        self._login = login
        self._left = False
        """The last server announced that it stops."""
        self._task: asyncio.Task[None] | None = None
        self._connected_at = 0.0
        self._reclaim = Reclaim(core)
        core.on_lost = self._lost
        core.on_servers = self._servers

    async def open(self) -> None:
        """Make the first connection, within the timeout or the time to wait."""
        core = self._core
        core.start()
        try:
            await (self._wait_for_server() if self._wait else self._connect(self._timeout))
        except BaseException as error:
            self.end(error if isinstance(error, BusError) else None)
            raise
        self._established()
        core.events.emit(Event(kind="connected", url=self.url))

    async def _wait_for_server(self) -> None:
        """Retry until a server answers, the time is up, the client is closed, or an error is not curable by waiting."""
        core = self._core
        deadline = core.loop.time() + self._wait
        attempts = 0
        while True:
            left = deadline - core.loop.time()
            try:
                await self._connect(min(self._timeout, max(left, 0.1)))
            except BusError as error:
                if not is_curable(error):
                    raise
                if core.loop.time() >= deadline:
                    raise ConnectFailed(f"{error} (waited {self._wait:g} s)") from error
                self._log_waiting(attempts, error)
            else:
                if attempts:
                    log.info("connected to %s", self.url, extra={"url": self.url, "attempts": attempts})
                return
            attempts += 1
            delay = min(self._wait_schedule.next(), max(deadline - core.loop.time(), 0.0))
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closed.wait()
            if core.state == "closed":
                raise core.unavailable_error()

    def _log_waiting(self, attempts: int, error: BusError) -> None:
        if attempts == 0:
            urls = self.directory.order("", left=False)
            log.warning("no server answers: %s; waiting for one", error, extra={"urls": urls, "error": str(error)})
            return
        log.debug("attempt %d: %s", attempts + 1, error)

    def end(self, error: BusError | None = None) -> None:
        """Close the client for good: by the user's wish, or because of this error."""
        core = self._core
        if core.state == "closed":
            return
        core.state = "closed"
        core.error = error
        self._closed.set()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._reclaim.stop()
        if core.connection is not None:
            core.connection.discard()
            core.detach(error or Closed("this bus is closed"))
        if count := core.offline_buffer.clear():
            log.error("%d buffered messages were never sent: the client was closed without a connection", count)
            core.events.emit(
                Event(kind="error", count=count, error=Disconnected("the client was closed before it could reconnect"))
            )
        for registrant in core.registrants():
            registrant.ended(error)
        self._posts.end(core.unavailable_error())
        if core.durable_publisher is not None:
            core.durable_publisher.end(core.unavailable_error())
        core.wake()
        core.flow_control.stop()
        core.log_lines.end()
        core.events.emit(Event(kind="closed", url=self.url, error=error))
        core.events.end()

    async def restored(self) -> None:
        """Return when the client has reconnected or has given up."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _lost(self, connection: Connection, error: BusError) -> None:
        core = self._core
        established = core.state == "connected"
        if established:
            self._left = core.broker_stopping or error.code == Code.GOING_AWAY
        unsent = core.detach(error)
        self._reclaim.stop()
        if core.closing or not established:
            return  # the user closes the client, or the attempt that made this connection handles the error
        if isinstance(error, SlowConsumer):
            for subscription in list(core.subscriptions.values()):
                if subscription.policy == "disconnect":
                    subscription.ended(SlowConsumer(error.reason, missed=subscription.missed))
        core.state = "lost"
        final = not self._schedule or error.code in FINAL
        log.log(
            logging.INFO if not self._schedule else logging.WARNING,  # with reconnect=None every call raises the error
            "connection lost to %s: %s; %s",
            connection.url,
            error,
            "not reconnecting" if final else "reconnecting",
            extra={"url": connection.url, "error": str(error)},
        )
        core.events.emit(Event(kind="lost", url=connection.url, error=error, unsent=unsent))
        if final:
            self.end(error)
            return
        self._task = core.loop.create_task(self._reconnect(unsent), name="busway reconnect")

    async def _reconnect(self, unsent: int) -> None:
        core = self._core
        lost = core.loop.time()
        attempts = 0
        if lost - self._connected_at >= _STEADY:
            self._schedule.begin()
        while True:
            await asyncio.sleep(self._schedule.next())
            attempts += 1
            try:
                await self._connect(self._timeout, attempts - 1)
            except (BusError, OSError) as error:
                # Log the first, second, fourth, eighth ... failure at INFO.
                level = logging.INFO if attempts & (attempts - 1) == 0 else logging.DEBUG
                log.log(level, "reconnect attempt %d failed: %s", attempts, error, extra={"attempts": attempts})
                if isinstance(error, BusError) and error.code in FINAL:
                    log.error("the client can't reconnect and is closed: %s", error)  # noqa: TRY400, it is expected
                    self.end(error)
                    return
            except Exception as error:
                log.exception("the client is closed: reconnecting failed with an unexpected error")
                self.end(Disconnected(f"{type(error).__name__}: {error}"))
                return
            else:
                break
        self._task = None
        self._established()
        downtime = core.loop.time() - lost
        gaps = sum(isinstance(one, Subscription) and one.live and one.plain for one in core.registrants())
        text = f"; {gaps} subscription(s) missed messages that were published in between" if gaps else ""
        log.warning(
            "connected again to %s after %.1f s%s",
            self.url,
            downtime,
            text,
            extra={"url": self.url, "downtime": round(downtime, 3), "attempts": attempts, "interrupted": gaps},
        )
        core.events.emit(
            Event(kind="resumed", url=self.url, downtime=downtime, attempts=attempts, unsent=unsent, count=gaps)
        )

    def _established(self) -> None:
        """Allow messages, the buffered ones first. All registrations have been restored."""
        core = self._core
        core.state = "connected"
        self._connected_at = core.loop.time()
        for topic, payload, fields, scope in core.offline_buffer.take(self._connected_at):
            try:
                core.session.send(PUBLISH, topic, payload, each=scope, fields=fields)
            except BusError as refused:  # another server may have other limits
                core.events.emit(Event(kind="rejected", url=self.url, topic=topic, error=refused))
        core.open = True
        if core.connection is not None:
            core.connection.update()
        core.wake()
        if expired := core.offline_buffer.take_expired():
            log.warning("%d buffered messages expired and were not sent", expired)
            error = Timeout(f"{expired} buffered messages expired before there was a connection")
            core.events.emit(Event(kind="error", count=expired, error=error))

    async def _connect(self, timeout: float, failures: int = 0) -> None:
        """Connect to the first server that answers and accepts the client. `failures`: earlier failed attempts."""
        urls = self.directory.order(self.url, left=self._left)
        if failures:  # with a high latency none of many servers could answer within its share of the time
            urls = self.directory.fewer(urls, failures)
        failed: list[tuple[str, BusError]] = []
        async with Dialer(urls, self._dial, timeout) as dialer:
            while (result := await dialer.next()) is not None:
                url, connection = result
                try:
                    if isinstance(connection, Exception):
                        raise connection
                    await self._handshake(url, connection, dialer.handshake_timeout)
                except (Disconnected, Rejected, RemoteProtocolError) as error:
                    failed.append((url, error))
                    self.directory.failed(url)
                else:
                    self._left = False
                    self.directory.answered(url)
                    return
        for url, reason in failed:
            # The refusal of a server that only a broker listed must not end the attempts at the given servers.
            learned = self.directory.is_learned(url) and reason.code != Code.SESSION_TAKEN
            if not learned and (not isinstance(reason, ConnectFailed) or reason.code in FINAL):
                raise reason
        cause = next((reason for _, reason in failed if not is_curable(reason)), failed[0][1])
        raise ConnectFailed("; ".join(str(reason) for _, reason in failed)) from cause

    async def _dial(self, url: str, timeout: float) -> Connection:
        connection = Connection(self._core, url)
        try:
            await dial(parse(url), lambda: connection, tls=self._tls, timeout=timeout)
        except BaseException:
            connection.discard()  # the dial may be cancelled just when the connection has been made
            raise
        return connection

    async def _handshake(self, url: str, connection: Connection, timeout: float) -> None:
        """Exchange HELLO and WELCOME over a new connection, then restore the registrations."""
        core = self._core
        if connection.over:  # it was closed during the handshake with another server
            raise ConnectFailed(f"{url}: the connection was closed by the other side")
        core.connection = connection
        core.session.attach(connection.on_output)
        received = core.welcome = core.loop.create_future()
        challenged = core.challenge = core.loop.create_future()
        login = self._login.login(core.session_id)
        try:
            async with asyncio.timeout(timeout) as limit:
                connection.begin()
                core.session.hello(self._hello(login))
                connection.flush()
                await asyncio.wait([received, challenged], return_when=asyncio.FIRST_COMPLETED)
                if challenged.done():
                    answer = await login.answer(challenged.result(), core.loop)
                    core.session.login(answer)
                    connection.flush()
                welcome = self._decode_welcome(*await received)
                login.check_server(self.server.get("proof"))
                core.broker = str(self.server.get("guid", ""))
                core.grace = welcome.grace
                connection.greeted = True
                self._learn(welcome.servers, url)
                connection.keep_alive(welcome.heartbeat)
                self._reclaim.arrived(core.broker, welcome.heartbeat)
                limits = welcome.limits
                core.session.writable(False)  # publishes follow the restored registrations
                core.session.open(frame=limits.frame, topic=limits.topic, fields=limits.fields, topics=limits.topics)
                with _extended_while_receiving(connection, limit, timeout):
                    await self._restore(connection, timeout)
        except BaseException as error:
            connection.discard()
            core.welcome = core.challenge = None
            if core.connection is connection:
                core.detach(Disconnected("the handshake failed"))
            if isinstance(error, TimeoutError) and not isinstance(error, BusError):
                raise ConnectFailed(f"{url}: no answer within {timeout:g} s") from error
            if isinstance(error, Disconnected):
                silent = url.startswith("tcp://") and connection.reason is None and not connection.greeted
                hint = "; if the server needs TLS, write tls:// instead of tcp://" if silent else ""
                raise ConnectFailed(f"{url}: {error}{hint}", code=error.code) from error
            raise
        finally:
            core.welcome = core.challenge = None
        self.url = url

    def _servers(self, packed: bytes, apart: bool) -> None:  # noqa: FBT001, the core calls it
        """Process a new list of servers. `apart`: the broker regained a link that it had lost to one of them."""
        try:
            servers = _listing_decoder.decode(packed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"SERVERS: {error}") from error
        if self._core.connection is not None:
            self._learn(servers, self._core.connection.url)
            self._core.events.emit(Event(kind="servers", url=self.url, count=len(self.directory.servers)))
        if apart:
            count = 0
            for registrant in self._core.registrants():
                if isinstance(registrant, Subscription) and registrant.live:
                    count += registrant.apart()
            if count:
                log.warning(
                    "%s was cut off from another server of its cluster; "
                    "%d subscription(s) missed messages that were published there",
                    self.url,
                    count,
                    extra={"url": self.url, "interrupted": count},
                )
            self._core.events.emit(Event(kind="apart", url=self.url, count=count))

    def _learn(self, servers: Listing, url: str) -> None:
        for complaint in self.directory.update(servers, url):
            log.warning("%s: %s", url, complaint)

    def _hello(self, login: ClientLogin) -> bytes:
        credentials = self._credentials() if callable(self._credentials) else self._credentials
        hello: dict[str, Any] = {
            "name": self._name,
            "session": self._core.session_id,
            "secret": self._core.secret,
            "credentials": credentials,
            "agent": f"busway/{__version__}",
            **login.hello,
        }
        if (identity := self._core.identity) is not None:
            hello["generation"] = identity.generation
        return msgspec.msgpack.encode(hello)

    def _decode_welcome(self, version: int, packed: bytes) -> Welcome:
        if version > PROTOCOL:
            raise RemoteProtocolError(
                f"WELCOME with protocol version {version}: this client supports up to {PROTOCOL}", code=Code.VERSION
            )
        try:
            self.server = msgspec.msgpack.decode(packed, type=dict[str, Any])
            return msgspec.msgpack.decode(packed, type=Welcome)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"WELCOME: {error}") from error

    async def _restore(self, connection: Connection, timeout: float) -> None:
        """Restore every registration at the server, then every post, then the durable publishes."""
        core = self._core
        registrants = [registrant for registrant in core.registrants() if registrant.live]
        numbers = [registrant.announce() for registrant in registrants]
        answers = [core.answer(number) for number in numbers]
        try:
            if answers:
                await asyncio.wait(answers)
        finally:
            for number in numbers:
                core.pending.pop(number)
        errors = [answer.exception() for answer in answers]
        for registrant, error in zip(registrants, errors, strict=True):
            if isinstance(error, Disconnected):
                raise error
            if isinstance(error, BusError):
                self._reclaim.refused(connection, registrant, error)
            else:
                registrant.restored()
        await self._posts.restore()
        if core.durable_publisher is not None:
            await core.durable_publisher.restore(timeout / 2)  # leave time for the rest of the handshake
        if core.connection is not connection:
            raise Disconnected("the connection was lost again")


@contextmanager
def _extended_while_receiving(connection: Connection, limit: asyncio.Timeout, seconds: float) -> Iterator[None]:
    """Extend the time limit while the connection receives bytes.

    On a slow connection answers wait behind messages. A client that gave up would receive the same messages again.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal timer
        if connection.received():
            limit.reschedule(loop.time() + seconds)
        timer = loop.call_later(seconds / 2, check)

    timer = loop.call_later(0, check)
    try:
        yield
    finally:
        timer.cancel()
