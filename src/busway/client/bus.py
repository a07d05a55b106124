"""`busway.connect`: the public face of a client.

publish() is inherited from the engine: what can be encoded at once is one native call. Everything slow (no room, no
connection, an answer to wait for) is a coroutine beside it.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar, overload

from busway._core import Message, Publisher
from busway.checks import check_callable, check_seconds, check_timeout
from busway.client.core import Core, ErrorHook, State
from busway.client.events import EventStream
from busway.client.resume import Credentials, Life
from busway.client.schedule import JITTER
from busway.client.sending import CONFIRM, PUBLISH, PUSH, REQUEST, Sender
from busway.client.service import Responder, Service
from busway.client.subscription import Handler, Subscription
from busway.client.typed import Protocol, Received, TypedService, TypedSubscription, kind_for, kind_of, outgoing
from busway.errors import BusError, Code, Disconnected, Timeout
from busway.settings import DEFAULT_URL, TLS, URL_VARIABLE, MiB, Offline, Policy, check_offline

__all__ = ["JITTER", "RECONNECT", "Bus", "Credentials", "ErrorHook", "connect"]

RECONNECT: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Delays before the attempts to reconnect; the last one repeats."""

_Pairs: TypeAlias = Iterable[tuple[str, object]]
Plain: TypeAlias = (
    bytes | bytearray | memoryview | str | int | float | list[Any] | tuple[Any, ...] | dict[str, Any] | None
)
"""Payloads that are no protocol values, so that the reply to them is a Message."""

R = TypeVar("R")
T = TypeVar("T")


class Bus(Publisher):
    """A client. Use it with `async with`, or await it and close() it."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        name: str = "",
        timeout: float = 5.0,
        reconnect: Sequence[float] | None = RECONNECT,
        jitter: float = JITTER,
        offline: Offline = "fail",
        tls: TLS | None = None,
        credentials: Credentials = None,
        drain: float = 5.0,
        on_error: ErrorHook | None = None,
    ) -> None:
        check_seconds("drain", drain)
        check_callable("on_error", on_error)
        self.name = name
        self._core = Core(on_error)
        self._life = Life(
            self._core,
            urls,
            name=name,
            timeout=timeout,
            reconnect=reconnect,
            jitter=jitter,
            tls=tls,
            credentials=credentials,
        )
        self._sender = Sender(self._core, offline)
        self._drain = drain
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
        """The server it is, or was last, connected to."""
        return self._life.url

    @property
    def server(self) -> dict[str, Any]:
        """What the broker said of itself."""
        return self._life.server

    @property
    def errors(self) -> int:
        """How often a handler raised, or something else went wrong where nobody waited for it."""
        return self._core.errors

    def events(self) -> EventStream:
        """An async iterator over what happens to the connection, from now on."""
        return self._core.events.listen()

    # Publishing.

    def _publish(
        self,
        topic: str,
        payload: object,
        confirm: bool | None,  # noqa: FBT001, the engine calls it
        offline: Offline | None,
    ) -> Coroutine[Any, Any, int | None]:
        """What publish() can't do at once: other payloads, an answer to wait for, no room, no connection."""
        if offline is not None:
            check_offline(offline)
        if type(payload) is bytes or type(payload) is str:
            data: bytes | str = payload
        else:
            topic, data = outgoing(topic, payload)
        if confirm:
            return self._sender.ask(PUBLISH, topic, data, None, flags=CONFIRM)
        return self._core.session.publish(topic, data) or self._sender.publish(topic, data, offline)

    @overload
    async def publish_many(self, topic: str, payloads: Iterable[object], /) -> int: ...

    @overload
    async def publish_many(self, messages: _Pairs, /) -> int: ...

    async def publish_many(self, topic: str | _Pairs, payloads: Iterable[object] = (), /) -> int:
        """Publish many payloads on one topic, or many pairs of topic and payload; how many."""
        if not isinstance(topic, str):
            count = 0
            for one, payload in topic:
                await self.publish(one, payload)
                count += 1
            return count
        return await self._sender.publish_many(topic, payloads)

    # Asking.

    async def push(self, topic: str, payload: object = b"", *, timeout: float | None = 5.0) -> None:
        """Hand a message to exactly one consumer; NoConsumers if nobody takes it, LimitExceeded if all who could are full."""
        check_timeout("timeout", timeout)
        if type(payload) is not bytes and type(payload) is not str:
            topic, payload = outgoing(topic, payload)
        await self._sender.ask(PUSH, topic, payload, timeout)

    @overload
    async def request(self, topic: str, payload: Plain = b"", *, timeout: float | None = 5.0) -> Message: ...

    @overload
    async def request(self, topic: str, payload: Protocol[R], *, timeout: float | None = 5.0) -> R: ...

    @overload
    async def request(self, topic: str, payload: object, *, timeout: float | None = 5.0) -> Any: ...

    async def request(self, topic: str, payload: object = b"", *, timeout: float | None = 5.0) -> Any:
        """Ask the service of a topic and return its reply: a Message, or for a typed request what its protocol says.

        Raises NoResponders, ServiceGone, HandlerError with the handler's text, or Timeout.
        """
        check_timeout("timeout", timeout)
        aux = 0 if timeout is None else max(1, min(int(timeout * 1000), 0xFFFFFFFF))
        if type(payload) is bytes or type(payload) is str:
            return await self._sender.ask(REQUEST, topic, payload, timeout, aux=aux)
        kind = kind_of(payload)
        codec = None if kind is None else kind.reply_codec()
        topic, data = outgoing(topic, payload)
        reply = await self._sender.ask(REQUEST, topic, data, timeout, aux=aux)
        return reply if codec is None else codec.decode(topic, reply.payload)

    # Receiving and serving.

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        patience: float = 5.0,
        handler: Handler | None = None,
        concurrency: int = 1,
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        pattern: type[T],
        below: str,
        *,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        patience: float = 5.0,
        handler: Callable[[Received[T]], object] | None = None,
        concurrency: int = 1,
    ) -> TypedSubscription[T]: ...

    def subscribe(
        self,
        pattern: str | type[Any],
        below: str = "",
        *,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        patience: float = 5.0,
        handler: Callable[[Any], object] | None = None,
        concurrency: int = 1,
    ) -> Subscription | TypedSubscription[Any]:
        """Messages whose topic matches: `a/*/c`, `a/**`, or a regular expression `re:a/[0-9]+`.

        ::

            async with bus.subscribe("price/*") as prices:
                async for message in prices:
                    print(message.topic, message.payload)

        Of the subscriptions in a `group` one gets each message. When more than `limit` messages or `limit_bytes` bytes
        wait, `policy` decides; under `block` publishers wait for a consumer that takes messages, and for `patience` seconds
        for one that takes none. A `handler` is called with each message, by `concurrency` tasks. `subscribe(Hello, "alice")`
        gives the messages of a protocol, on topics below its prefix.
        """
        check_callable("handler", handler)
        kind = None if isinstance(pattern, str) else kind_for(pattern)
        subscription = Subscription(
            self._core,
            pattern if isinstance(pattern, str) else kind_for(pattern).pattern(below),
            group=group,
            echo=echo,
            policy=policy,
            limit=limit,
            limit_bytes=limit_bytes,
            handler=handler if kind is None or handler is None else kind.handler(handler),
            concurrency=concurrency,
            drain=self._drain,
            patience=patience,
        )
        return subscription if kind is None else TypedSubscription(subscription, kind)

    @overload
    def serve(self, topic: str, handler: Responder | None = None, *, concurrency: int = 64) -> Service: ...

    @overload
    def serve(
        self, topic: type[T], below: str, /, handler: Callable[[T], object] | None = None, *, concurrency: int = 64
    ) -> TypedService[T]: ...

    def serve(
        self, topic: str | type[Any], *more: Any, handler: Any = None, concurrency: int = 64
    ) -> Service | TypedService[Any]:
        """Answer the requests on a topic, with what the handler returns or by iterating over them.

        ::

            async with bus.serve("sum", lambda message: sum(message.json())):
                ...

        `serve(HelloRequest, "", handler)` answers the requests of a protocol; the handler gets and gives typed values.
        """
        if len(more) > (1 if isinstance(topic, str) else 2) or (
            more and handler is not None and isinstance(topic, str)
        ):
            raise TypeError(
                "serve() takes a topic and a handler, or a protocol, a topic below its prefix and a handler"
            )
        if isinstance(topic, str):
            (handler,) = more or (handler,)
            return Service(self._core, topic, handler, concurrency=concurrency, drain=self._drain)
        kind = kind_for(topic)
        below, handler = (more[0] if more else ""), (more[1] if len(more) > 1 else handler)
        full = kind.topic(below)
        answer = None if handler is None else kind.answering(handler)
        service = Service(self._core, full, answer, concurrency=concurrency, drain=self._drain)
        return TypedService(service, kind, lambda error: self._core.report(error, "a request", full))

    # Looking.

    async def info(self) -> dict[str, Any]:
        """What the broker tells of itself, its counters and its connections."""
        answer = await self.request("$bus/info")
        info: dict[str, Any] = answer.json()
        return info

    async def rtt(self, timeout: float | None = 5.0) -> float:
        """Seconds to the broker and back, behind all that was published before."""
        check_timeout("timeout", timeout)
        core = self._core
        connection = core.usable()
        try:
            async with asyncio.timeout(timeout):
                return await core.ping(connection)
        except TimeoutError as error:
            raise Timeout(f"no answer of the broker within {timeout:g} s") from error

    async def flush(self, timeout: float | None = 5.0) -> None:
        """Return when the broker has handled everything that was published before; None waits as long as it takes."""
        await self.rtt(timeout)

    # Life.

    async def open(self) -> Self:
        """Connect; ConnectFailed if none of the servers can be reached in time."""
        if self._core.forked or self._core.state == "closed":
            raise self._core.why_not()
        if not self._opened:
            self._opened = True
            await self._life.open()
        return self

    async def close(self) -> None:
        """Let handlers and services finish, send what waits, say goodbye; all within the drain time."""
        await self.drain(self._drain)

    async def drain(self, timeout: float) -> None:
        """Close within so many seconds. Cancelled, it closes at once."""
        check_timeout("timeout", timeout, forever=False)
        core = self._core
        if core.forked or core.state == "closed":
            core.state = "closed"
            return
        core.closers.add(asyncio.current_task())
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(timeout), name="busway close")
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._closing.cancel()
            raise

    async def _close(self, timeout: float) -> None:
        core = self._core
        try:
            async with asyncio.timeout(timeout):
                parts = [part for part in core.parts() if part.handled]
                await asyncio.gather(*(part.close() for part in parts))
                if len(core.waiting):
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


def connect(
    *urls: str,
    name: str = "",
    timeout: float = 5.0,
    reconnect: Sequence[float] | None = RECONNECT,
    jitter: float = JITTER,
    offline: Offline = "fail",
    tls: TLS | None = None,
    credentials: Credentials = None,
    drain: float = 5.0,
    on_error: ErrorHook | None = None,
) -> Bus:
    """A client of the bus at the first of these addresses that answers.

    Without an address, the one in the environment variable BUSWAY_URL, else tcp://127.0.0.1:7420. `reconnect` are the
    delays before attempts to come back after a loss (the last repeats; None: never), each longer or shorter by up to
    `jitter` of itself. `on_error` is called with what handlers raise.

    ::

        async with busway.connect("tcp://127.0.0.1:7420", name="feed") as bus:
            await bus.publish("price/eth/eur", b"3012.5")
    """
    if not urls:
        urls = tuple(os.environ.get(URL_VARIABLE, "").split()) or (DEFAULT_URL,)
    return Bus(
        urls,
        name=name,
        timeout=timeout,
        reconnect=reconnect,
        jitter=jitter,
        offline=offline,
        tls=tls,
        credentials=credentials,
        drain=drain,
        on_error=on_error,
    )
