"""The blocking Bus: runs each call of the asyncio Bus in the loop thread and waits for its result.

A driver without knowledge of the protocol. busway.sync exports it.
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
from busway.sync.subscription import Closable, Events, Request, Service, Subscription, TypedRequest
from busway.sync.threads import in_threads

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")

_ASK_THREADS: Final = 4
"""Threads for the `ask` function of a service. The threads of its handler may all be busy."""


class Bus(RequestVerbs, StreamVerbs, ChannelVerbs, Closable):
    """A blocking client; made by busway.sync.connect() or by connect() of a blocking server."""

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
        """Address of the current or last server."""
        return self._inner.url

    @property
    def server(self) -> dict[str, Any]:
        """The broker's description of itself, from the handshake."""
        return self._inner.server

    @property
    def servers(self) -> tuple[Known, ...]:
        """The servers that the broker listed, including itself, with the addresses that this client may use."""
        return self._inner.servers

    @property
    def errors(self) -> int:
        """Number of errors that no caller received, such as those of handlers."""
        return self._inner.errors

    def events(self) -> Events:
        """An iterator over the future events of this client."""

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
        """Send a message to all subscribers of its topic; with `confirm`, return how many connections received it.

        With `durable` the broker stores the message, and the call returns its position once it is as safe as its stream
        promises. `timeout` limits this wait, also while there is no connection.
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
    """Another name of publish()."""

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
        """Publish many payloads on one topic, or many pairs of topic and payload, and return their number.

        All messages get the same fields. With `durable` the broker stores them, and the call returns their positions;
        `timeout` limits this wait.
        """
        # A generator of the caller has to run in the caller's thread.
        given = [list(topic)] if payloads is None else [topic, list(payloads)]
        many: Any = self._inner.publish_many
        more = {"expires": expires, "delay": delay, "deliver_at": deliver_at, "scope": scope, "timeout": timeout}
        answer: int | Placed = self._portal.call(lambda: many(*given, fields=fields, durable=durable, **more))
        return answer

    def feed(self, patience: Duration = 30.0) -> "Feed":
        """A feed for programs that store very many messages, like feed() of the asyncio Bus."""

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
        """Subscribe to the topics that match, and return the registered subscription.

        A handler runs in `concurrency` threads. Rules that are callables run in the bus's own thread and must not use
        the bus.
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
        """Serve the requests on a topic, with the results of the handler or by iterating over the requests.

        The handler runs in `concurrency` threads. A handler that is a generator replies with each item. `ask` runs in
        separate threads.
        """
        below, given = ((), more) if isinstance(topic, str) else (more[:1], more[1:])
        called, pool = in_threads("handler", given[0] if given else handler, concurrency)
        willing, ask_pool = in_threads("ask", ask, _ASK_THREADS)

        async def serving() -> Any:
            serve: Any = self._inner.serve
            more: dict[str, Any] = {"concurrency": concurrency, "scope": scope, "wait": wait}
            return await serve(topic, *below, handler=called, shared=shared, ask=willing, **more)

        wrap = Request if isinstance(topic, str) else TypedRequest
        return Service(self._portal, self._portal.call(serving), wrap, pool, ask_pool)

    # Information.

    def info(self) -> dict[str, Any]:
        """The broker's description of itself, its counters and its connections."""
        return self._portal.call(self._inner.info)

    def rtt(self, timeout: Duration | None = 5.0) -> float:
        """Round-trip time to the broker in seconds."""
        return self._portal.call(lambda: self._inner.rtt(timeout))

    def flush(self, timeout: Duration | None = 5.0) -> None:
        """Return when the broker has handled all earlier publishes."""
        self._portal.call(lambda: self._inner.flush(timeout))

    # Life cycle.

    def open(self) -> Self:
        """Return this bus, which is open from its creation. Raises Closed if it was closed."""
        self._portal.call(self._inner.open)
        return self

    def close(self) -> None:
        """Let handlers and services finish, send waiting messages and disconnect, all within the drain time."""
        self._end(self._inner.close)

    def drain(self, timeout: Duration) -> None:
        """Close like close(), within `timeout` seconds."""
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
    """Stores runs in the order of the calls; made by Bus.feed()."""

    def __init__(self, portal: Portal, inner: AsyncFeed) -> None:
        self._portal = portal
        self._inner = inner

    def skip(self, number: int) -> None:
        """Use no publish number up to this one for later messages."""

        async def skipped() -> None:
            self._inner.skip(number)

        self._portal.call(skipped)

    def send(self, runs: Sequence[Run]) -> None:
        """Return when these runs are in flight. Raises RunFailed for an earlier run, too, or Timeout."""
        self._portal.call(lambda: self._inner.send(runs))

    def done(self) -> None:
        """Return when all runs are stored. Raises RunFailed or Timeout."""
        self._portal.call(self._inner.done)


_open: "WeakSet[Bus]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close every open bus at exit, so that the last publishes of a script are still sent."""
    for bus in list(_open):
        bus.close()
