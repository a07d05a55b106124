"""The Bus: the public API of a client, and `busway.connect()`, which makes one.

User programs call this module; the command line, the gateways and Spark use it, too. The docstring of Bus names the
file of each verb.
"""

import asyncio
import os
from collections.abc import Coroutine, Generator, Iterable, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack, overload

from busway._core import Publisher
from busway.authority.credentials import CredentialOptions, Credentials, completed, split_addresses
from busway.client.channels.admin import ChannelVerbs
from busway.client.connection.core import Core, ErrorHook, State
from busway.client.connection.dialer import JITTER, RECONNECT
from busway.client.connection.events import EventStream
from busway.client.connection.sender import CONFIRM, PUBLISH, Sender
from busway.client.connection.server_list import Known
from busway.client.connection.wait import Waits
from busway.client.durable.feed import Feed
from busway.client.durable.publisher import DurablePublisher
from busway.client.durable.times import Lasting, times_of
from busway.client.lifecycle import CallerCredentials, Lifecycle
from busway.client.retained import Posts, RetainedVerbs
from busway.client.services.requests import RequestVerbs
from busway.client.streams.stream import StreamVerbs
from busway.client.typed.protocol import outgoing
from busway.client.verbs import SubscribeVerbs
from busway.common.checks import check_callable, check_seconds, check_timeout
from busway.common.durations import Duration, seconds
from busway.common.options import takes_options
from busway.errors import BusError, Code, Disconnected, Timeout
from busway.fields import Fields
from busway.positions import Placed
from busway.settings import DEFAULT_URL, TLS, URL_VARIABLE, Identity, Offline, Scope, check_offline, check_scope

__all__ = ["RECONNECT", "Bus", "ClientOptions", "ConnectOptions", "connect"]

Pairs: TypeAlias = Iterable[tuple[str, object]]
"""Topics and payloads."""
_FOR_ALL: Final = "durable=True takes no scope, for a stored message is for all nodes: leave the scope out"
_NO_TIMEOUT: Final = (
    "timeout limits the wait for an acknowledgement, and only stored messages have one: give durable=True too"
)
_FOR_STORED: Final = "expires, delay and deliver_at are for stored messages: give durable=True too"


class DurableOptions(TypedDict, total=False):
    """The keyword arguments of publish_many() for stored messages."""

    expires: Lasting | datetime | None
    delay: Lasting | None
    deliver_at: datetime | None
    timeout: Lasting | None


class ClientOptions(CredentialOptions, total=False):
    """The keyword arguments of Server.connect()."""

    name: str
    fields: Fields | None
    timeout: Duration
    reconnect: Sequence[Duration] | None
    jitter: float
    offline: Offline
    credentials: CallerCredentials
    drain: Duration
    on_error: ErrorHook | None
    identity: Identity | None


class ConnectOptions(ClientOptions, total=False):
    """The keyword arguments of connect()."""

    wait: Waits
    tls: TLS | None
    learn: bool


class Bus(Publisher, RequestVerbs, RetainedVerbs, SubscribeVerbs, StreamVerbs, ChannelVerbs):
    """A client. Use it with `async with`, or await it and close() it.

    Where each verb is implemented; the files are below `busway/client`:

    - publish, send: the native Publisher of `busway._core` sends what can be sent at once; _publish() does the rest
    - publish_many, feed, info, rtt, flush, events, open, close, drain: bus.py
    - subscribe, serve: verbs.py
    - push, request, request_all, request_many: services/requests.py
    - post, unpost, pin, unpin, kept: retained.py
    - create_stream, update_stream, remove_stream, stream, streams: streams/stream.py
    - channel, create_channel, update_channel, seek_channel, remove_channel, channel_info, channels, dead_letters,
      redrive_channel: channels/admin.py
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        name: str = "",
        fields: Fields | None = None,
        timeout: Duration = 5.0,
        wait: Waits = False,
        reconnect: Sequence[Duration] | None = RECONNECT,
        jitter: float = JITTER,
        offline: Offline = "fail",
        tls: TLS | None = None,
        credentials: CallerCredentials = None,
        drain: Duration = 5.0,
        on_error: ErrorHook | None = None,
        identity: Identity | None = None,
        learn: bool = True,
        user: str = "",
        password: str | None = None,
        password_file: str | PathLike[str] | None = None,
        key_file: str | PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
    ) -> None:
        limit = check_seconds("drain", drain)
        login = Credentials(user, password, password_file, key_file, token, token_file)
        urls, login = split_addresses(urls, login)
        check_callable("on_error", on_error)
        self.name = name
        self._core = Core(on_error, fields, identity)
        self._core.name = name
        self._posts = Posts(self._core)
        self._life = Lifecycle(
            self._core,
            self._posts,
            urls,
            name=name,
            timeout=timeout,
            wait=wait,
            reconnect=reconnect,
            jitter=jitter,
            tls=tls,
            credentials=credentials,
            login=login,
            learn=learn,
        )
        self._sender = Sender(self._core, offline)
        self._durable = self._core.durable_publisher = DurablePublisher(self._core)
        self._drain = limit
        self._bind(self._core.session)
        self._opened = False
        self._closing: asyncio.Task[None] | None = None

    # State.

    @property
    def state(self) -> State:
        return self._core.state

    @property
    def closed(self) -> bool:
        return self._core.state == "closed"

    @property
    def url(self) -> str:
        """The address of the current server, or of the last one."""
        return self._life.url

    @property
    def server(self) -> dict[str, Any]:
        """The broker's description of itself, from the handshake."""
        return self._life.server

    @property
    def servers(self) -> tuple[Known, ...]:
        """The servers of the broker's list, the broker among them, with the addresses that this client may use."""
        return self._life.directory.servers

    @property
    def errors(self) -> int:
        """How many errors were reported that no caller could receive, such as those of handlers."""
        return self._core.errors

    def events(self) -> EventStream:
        """An async iterator over the events of this client, from now on."""
        return self._core.events.listen()

    # Publishing.

    send = Publisher.publish
    """Another name of publish(), which fits post() and pin()."""

    def _publish(
        self,
        topic: str,
        payload: object,
        fields: Fields | None,
        confirm: bool | None,  # noqa: FBT001, the engine calls it
        offline: Offline | None,
        durable: bool | None,  # noqa: FBT001
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        scope: Scope = "global",
        timeout: Lasting | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Publish what the native publish() can't send at once: it calls this and returns the coroutine.

        The reasons are a payload that has to be encoded, an answer to wait for, no room, or no connection.
        """
        if offline is not None:
            check_offline(offline)
        scope_code = check_scope(scope)
        if type(payload) is bytes or type(payload) is str:
            data: bytes | str = payload
        else:
            topic, data = outgoing(topic, payload)
        packed = self._core.pack(fields)
        timed = expires is not None or delay is not None or deliver_at is not None
        if durable:
            times = (0, 0)
            if timed:
                times = times_of(expires, delay, deliver_at)
            if scope_code:
                raise ValueError(_FOR_ALL)
            if confirm or offline is not None:
                raise ValueError(
                    "a durable publish is always confirmed, so it takes no confirm or offline: leave them out"
                )
            return self._durable.publish(topic, data, packed, times, _within(timeout))
        if timed:
            raise ValueError(_FOR_STORED)
        if timeout is not None:
            raise ValueError(_NO_TIMEOUT)
        if confirm:
            return self._sender.ask(PUBLISH, topic, data, None, flags=CONFIRM, each=scope_code, fields=packed)
        sent = self._core.session.publish(topic, data, packed, scope_code)
        return sent or self._sender.publish(topic, data, offline, packed, scope_code)

    @overload
    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[object],
        /,
        *,
        fields: Fields | None = None,
        durable: Literal[False] = False,
        scope: Scope = "global",
    ) -> int: ...

    @overload
    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[object],
        /,
        *,
        fields: Fields | None = None,
        durable: Literal[True],
        **options: Unpack[DurableOptions],
    ) -> Placed: ...

    @overload
    async def publish_many(
        self, messages: Pairs, /, *, fields: Fields | None = None, scope: Scope = "global"
    ) -> int: ...

    async def publish_many(
        self,
        topic: str | Pairs,
        payloads: Iterable[object] = (),
        /,
        *,
        fields: Fields | None = None,
        durable: bool = False,
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        scope: Scope = "global",
        timeout: Lasting | None = None,
    ) -> int | Placed:
        """Publish many payloads on one topic, or many pairs of topic and payload, all with the same fields and scope.

        Returns how many. With `durable` they are stored, and it returns their positions when all are as safe as their
        stream promises. They stay in their order, which begins when this is awaited (a publish() begins when it is
        called). `timeout` limits the wait for the acknowledgements, also while there is no connection. The Timeout
        tells how many are stored, how many may still be stored, and how many were not sent.
        """
        if not durable and (expires is not None or delay is not None or deliver_at is not None):
            raise ValueError(_FOR_STORED)
        if timeout is not None and not durable:
            raise ValueError(_NO_TIMEOUT)
        scope_code = check_scope(scope)
        if durable and scope_code:
            raise ValueError(_FOR_ALL)
        if isinstance(topic, str):
            packed = self._core.pack(fields)
            if durable:
                times = times_of(expires, delay, deliver_at)
                return await self._durable.publish_many(topic, payloads, packed, times, _within(timeout))
            return await self._sender.publish_many(topic, payloads, packed, scope_code)
        if durable:
            raise TypeError("publish_many(durable=True) takes one topic and many payloads, not pairs")
        count = 0
        for each_topic, payload in topic:
            await self.publish(each_topic, payload, fields=fields, scope=scope)
            count += 1
        return count

    def feed(self, patience: Duration = 30.0) -> Feed:
        """A Feed, for a program that stores very many messages. It fails if none is stored for `patience` seconds."""
        return Feed(self._core, self._durable, check_seconds("patience", patience, zero=False))

    # Asking the broker.

    async def info(self) -> dict[str, Any]:
        """The broker's description of itself, its counters and its connections."""
        answer = await self.request("$bus/info")
        info: dict[str, Any] = answer.json()
        return info

    async def rtt(self, timeout: Duration | None = 5.0) -> float:
        """The seconds of a round trip to the broker. The broker has then handled every earlier publish."""
        limit = check_timeout("timeout", timeout)
        core = self._core
        connection = core.usable()
        try:
            async with asyncio.timeout(limit):
                return await core.ping(connection)
        except TimeoutError as error:
            raise Timeout(f"the broker did not answer within {limit:g} s") from error

    async def flush(self, timeout: Duration | None = 5.0) -> None:
        """Wait until the broker has handled every earlier publish. A `timeout` of None is no limit."""
        await self.rtt(timeout)

    # Opening and closing.

    async def open(self) -> Self:
        """Connect. Raises ConnectFailed if no server answers within the timeout, or within the time of `wait`."""
        if self._core.forked or self._core.state == "closed":
            raise self._core.unavailable_error()
        if not self._opened:
            self._opened = True
            await self._life.open()
        return self

    async def close(self) -> None:
        """Let handlers and services finish, send what waits, and close the connection, all within the drain time."""
        await self.drain(self._drain)

    async def drain(self, timeout: Duration) -> None:
        """Close within so many seconds. If the caller is cancelled, it closes at once."""
        limit = check_timeout("timeout", timeout, forever=False)
        core = self._core
        if core.forked or core.state == "closed":
            core.state = "closed"
            return
        core.closers.add(asyncio.current_task())
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(limit), name="busway close")
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._closing.cancel()
            raise

    async def _close(self, timeout: float) -> None:
        core = self._core
        try:
            async with asyncio.timeout(timeout):
                handled = [registrant for registrant in core.registrants() if registrant.handled]
                await asyncio.gather(*(registrant.close() for registrant in handled))
                if len(core.offline_buffer):
                    await self._life.restored()
                if (connection := core.connection) is not None and connection.greeted:
                    await core.ping(connection)
                    core.closing = True
                    core.open = False
                    core.session.writable(False)
                    core.session.close(Code.OK, "")
                    connection.flush()
                    connection.finish()
                    await connection.ended
        except (TimeoutError, Disconnected) as error:
            core.report(
                error if isinstance(error, BusError) else Timeout(f"not drained within {timeout:g} s"), "close()"
            )
        finally:
            self._life.end()
            await self._life.restored()  # pending attempts to connect close their sockets

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Bus {self.name!r} {self.state} {self.url}>"


@takes_options(Bus)
def connect(*urls: str, **options: Unpack[ConnectOptions]) -> Bus:
    """A client of the server at the first of these addresses that answers.

    Without an address it uses that of the environment variable BUSWAY_URL, else tcp://127.0.0.1:7420. With
    `wait=True` the client waits for a server that is not running yet, with `wait="30s"` for so long; `timeout` then
    limits each attempt. Wrong credentials, versions and certificates fail at once.

    `fields` are added to every message that the client publishes, pushes or requests; fields of the message override
    them. `reconnect` are the delays before the attempts to reconnect (the last repeats; None: never), each longer or
    shorter by up to `jitter` of itself. `on_error` is called with the errors that handlers raise. `identity` (a
    busway.settings.Identity) is for a publisher that has to be recognised after a restart of its process; without it
    each client is a new one.

    Where the server has users, the client says which one it is: `user` with a `password`, a `password_file` or a
    `key_file` (Ed25519), a `token` or a `token_file` (JWT), or its certificate (`tls`). The address may contain user
    and password (`tcp://alice:secret@host`). Without any of these the variables BUSWAY_USER, BUSWAY_PASSWORD_FILE,
    BUSWAY_KEY_FILE, BUSWAY_TOKEN_FILE, BUSWAY_PASSWORD and BUSWAY_TOKEN count.

    A server of a cluster sends the list of all its servers (`bus.servers`). If none of the
    given addresses answers, the client connects to one of them; with `learn=False` it does not.

    ::

        async with busway.connect("tcp://127.0.0.1:7420", name="feed") as bus:
            await bus.publish("price/eth/eur", b"3012.5")
    """
    if not urls:
        urls = tuple(os.environ.get(URL_VARIABLE, "").split()) or (DEFAULT_URL,)
    if not split_addresses(urls, Credentials())[1]:
        options.update(completed(options, os.environ))  # type: ignore[typeddict-item]  # it has a part of the options
    return Bus(urls, **options)


def _within(timeout: Lasting | None) -> float | None:
    return None if timeout is None else seconds("timeout", timeout)
