"""The blocking face: the same bus behind an event loop that a thread of its own runs.

A driver. Nothing here knows the protocol: each call is handed to the asyncio face and waited for. busway.sync is the
public name.
"""

import atexit
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload
from weakref import WeakSet

from busway.client import bus as asynchronous
from busway.client.connection.core import State
from busway.client.connection.events import EventStream
from busway.client.connection.server_list import Known
from busway.client.durable.feed import Feed as AsyncFeed, Run
from busway.client.durable.publisher import Lasting
from busway.client.typed.protocol import Declares, Received, UndeclaredClass
from busway.client.verbs import ServeOptions
from busway.common.durations import Duration
from busway.fields import Extra, Fields, Where
from busway.message import Message
from busway.positions import Placed, Position, Since
from busway.settings import MiB, Offline, Policy, Scope, Wait
from busway.sync.channel import ChannelVerbs
from busway.sync.portal import Portal
from busway.sync.requests import RequestVerbs
from busway.sync.stream import StreamVerbs
from busway.sync.subscription import Closing, Events, Request, Service, Subscription, TypedRequest
from busway.sync.threads import in_threads

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")

_ASKING: Final = 4
"""Threads in which a service is asked whether it is willing: not those of its handler, which may all be at work."""


class Bus(RequestVerbs, StreamVerbs, ChannelVerbs, Closing):
    """A client; made by busway.sync.connect() or a blocking server's connect()."""

    def __init__(self, make: Callable[[], asynchronous.Bus]) -> None:
        self._portal = Portal.acquire()

        async def connected() -> asynchronous.Bus:
            return await make()

        try:
            self._inner = self._portal.call(connected)
        except BaseException:
            self._portal.release()
            raise
        self._released = False
        _open.add(self)

    # State.

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def state(self) -> State:
        return self._inner.state

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def url(self) -> str:
        """The server it is, or was last, connected to."""
        return self._inner.url

    @property
    def server(self) -> dict[str, Any]:
        """What the broker said of itself."""
        return self._inner.server

    @property
    def servers(self) -> tuple[Known, ...]:
        """The servers that the broker told of, itself among them, with the addresses that this client may use."""
        return self._inner.servers

    @property
    def errors(self) -> int:
        """How often a handler raised, or something else went wrong where nobody waited for it."""
        return self._inner.errors

    def events(self) -> Events:
        """An iterator over what happens to the connection, from now on."""

        async def listen() -> EventStream:
            return self._inner.events()

        return Events(self._portal, self._portal.call(listen))

    # Publishing.

    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: Literal[False] = False,
        offline: Offline | None = None,
        scope: Scope = "global",
    ) -> None: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: Literal[True],
        offline: Offline | None = None,
        scope: Scope = "global",
    ) -> int: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        durable: Literal[True],
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        timeout: Lasting | None = None,
    ) -> Position: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: bool = False,
        offline: Offline | None = None,
        durable: bool = False,
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        scope: Scope = "global",
        timeout: Lasting | None = None,
    ) -> int | Position | None: ...
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: bool = False,
        offline: Offline | None = None,
        durable: bool = False,
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        scope: Scope = "global",
        timeout: Lasting | None = None,
    ) -> int | Position | None:
        """Send a message to all who subscribed to its topic; with `confirm`, how many connections received it.

        With `durable` it is stored, and its position is returned once it is as safe as its stream promises; `timeout` limits the
        wait for that, also while there is no connection.
        """
        answer: int | Position | None = self._portal.call(
            lambda: self._inner.publish(
                topic,
                payload,
                fields=fields,
                confirm=confirm,
                offline=offline,
                durable=durable,
                expires=expires,
                delay=delay,
                deliver_at=deliver_at,
                scope=scope,
                timeout=timeout,
            )
        )
        return answer

    send = publish
    """Another name of publish(), beside post() and pin()."""

    @overload
    def publish_many(
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
    def publish_many(
        self,
        topic: str,
        payloads: Iterable[object],
        /,
        *,
        fields: Fields | None = None,
        durable: Literal[True],
        expires: Lasting | datetime | None = None,
        delay: Lasting | None = None,
        deliver_at: datetime | None = None,
        timeout: Lasting | None = None,
    ) -> Placed: ...
    @overload
    def publish_many(
        self, messages: Iterable[tuple[str, object]], /, *, fields: Fields | None = None, scope: Scope = "global"
    ) -> int: ...
    def publish_many(
        self,
        topic: Any,
        payloads: Iterable[object] | None = None,
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
        """Publish many payloads on one topic, or many pairs of topic and payload, all with the same fields; how many.

        With `durable` they are stored, and their positions are returned; `timeout` limits the wait for that.
        """
        # A generator of the caller's runs in the caller's thread, not on the loop.
        given = [list(topic)] if payloads is None else [topic, list(payloads)]
        many: Any = self._inner.publish_many
        more = {"expires": expires, "delay": delay, "deliver_at": deliver_at, "scope": scope, "timeout": timeout}
        answer: int | Placed = self._portal.call(lambda: many(*given, fields=fields, durable=durable, **more))
        return answer

    def feed(self, patience: Duration = 30.0) -> "Feed":
        """For a program that stores very much; as that of the asyncio face."""

        async def made() -> AsyncFeed:
            return self._inner.feed(patience)

        return Feed(self._portal, self._portal.call(made))

    # Receiving and serving.

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        where: Where | None = None,
        extra: Extra | None = None,
        since: Since | None = None,
        notify: bool = False,
        watch: bool = False,
        listen: bool = False,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        patience: Duration = 5.0,
        handler: Callable[[Message], object] | None = None,
        concurrency: int = 1,
        scope: Scope = "global",
        wait: Wait | None = None,
    ) -> Subscription[Message]: ...
    @overload
    def subscribe(
        self,
        pattern: type[T],
        below: str,
        *,
        where: Where | None = None,
        extra: Extra | None = None,
        since: Since | None = None,
        notify: bool = False,
        watch: bool = False,
        listen: bool = False,
        group: str = "",
        echo: bool = True,
        policy: Policy = "block",
        limit: int = 65_536,
        limit_bytes: int = 16 * MiB,
        patience: Duration = 5.0,
        handler: Callable[[Received[T]], object] | None = None,
        concurrency: int = 1,
        scope: Scope = "global",
        wait: Wait | None = None,
    ) -> Subscription[Received[T]]: ...
    def subscribe(
        self, pattern: Any, *below: Any, handler: Any = None, concurrency: int = 1, **more: Any
    ) -> Subscription[Any]:
        """Messages whose topic matches; registered when this returns. A handler runs in `concurrency` threads.

        Callables among the rules are asked in the bus's own thread and must not use the bus.
        """
        called, pool = in_threads("handler", handler, concurrency)

        async def subscribed() -> Any:
            return await self._inner.subscribe(pattern, *below, handler=called, concurrency=concurrency, **more)

        return Subscription(self._portal, self._portal.call(subscribed), pool)

    @overload
    def serve(
        self,
        topic: str,
        handler: Callable[[Message], object] | None = None,
        *,
        ask: Callable[[Message], object] | None = None,
        **options: "Unpack[ServeOptions]",
    ) -> Service[Request]: ...
    @overload
    def serve(
        self,
        topic: type[Declares[T, R]],
        below: str,
        /,
        handler: Callable[[T], R | Awaitable[R] | AsyncGenerator[R, Any] | Generator[R, Any, Any]] | None = None,
        *,
        ask: Callable[[T], object] | None = None,
        **options: "Unpack[ServeOptions]",
    ) -> Service[TypedRequest[T]]: ...
    @overload
    def serve(
        self,
        topic: UndeclaredClass[T],
        below: str,
        /,
        handler: Callable[[T], object] | None = None,
        *,
        ask: Callable[[T], object] | None = None,
        **options: "Unpack[ServeOptions]",
    ) -> Service[TypedRequest[T]]: ...
    def serve(
        self,
        topic: Any,
        *more: Any,
        handler: Any = None,
        shared: bool = False,
        ask: Any = None,
        concurrency: int = 64,
        scope: Scope = "global",
        wait: Wait | None = None,
    ) -> Service[Any]:
        """Answer the requests on a topic, with what the handler returns (in `concurrency` threads) or by iterating.

        A handler that is a generator replies with each item. `ask` has threads of its own.
        """
        below, given = ((), more) if isinstance(topic, str) else (more[:1], more[1:])
        called, pool = in_threads("handler", given[0] if given else handler, concurrency)
        willing, asking = in_threads("ask", ask, _ASKING)

        async def serving() -> Any:
            serve: Any = self._inner.serve
            more: dict[str, Any] = {"concurrency": concurrency, "scope": scope, "wait": wait}
            return await serve(topic, *below, handler=called, shared=shared, ask=willing, **more)

        wrap = Request if isinstance(topic, str) else TypedRequest
        return Service(self._portal, self._portal.call(serving), wrap, pool, asking)

    # Looking.

    def info(self) -> dict[str, Any]:
        """What the broker tells of itself, its counters and its connections."""
        return self._portal.call(self._inner.info)

    def rtt(self, timeout: Duration | None = 5.0) -> float:
        """Seconds to the broker and back."""
        return self._portal.call(lambda: self._inner.rtt(timeout))

    def flush(self, timeout: Duration | None = 5.0) -> None:
        """Return when the broker has handled everything that was published before."""
        self._portal.call(lambda: self._inner.flush(timeout))

    # Life.

    def open(self) -> Self:
        """It is open from the start; a closed one says so."""
        self._portal.call(self._inner.open)
        return self

    def close(self) -> None:
        """Let handlers and services finish, send what waits, say goodbye; all within the drain time."""
        self._end(self._inner.close)

    def drain(self, timeout: Duration) -> None:
        """Close within so many seconds."""
        self._end(lambda: self._inner.drain(timeout))

    def _end(self, ending: Callable[[], Awaitable[None]]) -> None:
        if self._released or self._portal.foreign:
            return
        self._released = True
        _open.discard(self)
        try:
            self._portal.call(ending)
        finally:
            self._portal.release()

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


class Feed:
    """Stores runs in the order they are given; made by Bus.feed()."""

    def __init__(self, portal: Portal, inner: AsyncFeed) -> None:
        self._portal = portal
        self._inner = inner

    def skip(self, number: int) -> None:
        """Give no message a number up to this one."""

        async def skipped() -> None:
            self._inner.skip(number)

        self._portal.call(skipped)

    def send(self, runs: Sequence[Run]) -> None:
        """Return when these are on their way; what was refused meanwhile is raised."""
        self._portal.call(lambda: self._inner.send(runs))

    def done(self) -> None:
        """Return when everything is stored."""
        self._portal.call(self._inner.done)


_open: "WeakSet[Bus]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """What a script published before it ended without closing its bus still goes out."""
    for bus in list(_open):
        bus.close()
