"""The blocking Bus: its life, and the verbs whose functions run in threads.

A driver without knowledge of the protocol. busway.sync exports it. Its other verbs are generated.
"""

import atexit
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from inspect import signature
from typing import Any, Final, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from busway.client.bus import Bus as AsyncBus
from busway.client.channels.admin import ChannelOptions, kind_and_names
from busway.client.typed.protocol import Declares, Received, UndeclaredClass
from busway.client.typed_wrappers.channel import handling, reading
from busway.client.verbs import ServeOptions, SubscribeOptions
from busway.common.durations import Duration
from busway.message import Message
from busway.sync.base import Closable, Opened
from busway.sync.channel import Channel
from busway.sync.generated.bus import BusVerbs
from busway.sync.generated.channel import ChannelVerbs
from busway.sync.generated.requests import Request, RequestVerbs, TypedRequest
from busway.sync.generated.stream import StreamVerbs
from busway.sync.generated.typed_channel import Delivered, TypedChannel
from busway.sync.service import Service
from busway.sync.subscription import Subscription
from busway.sync.threads import in_threads

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")

_ASK_THREADS: Final = 4
"""Threads for the `ask` function of a service. The threads of its handler may all be busy."""


def signed_as(original: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator that gives a blocking verb the signature of the asyncio verb that it calls."""

    def sign(function: F) -> F:
        function.__signature__ = signature(original)  # type: ignore[attr-defined]
        return function

    return sign


class Bus(BusVerbs, RequestVerbs, StreamVerbs, ChannelVerbs, Opened[AsyncBus], Closable):
    """A blocking client; made by busway.sync.connect() or by connect() of a blocking server."""

    def __init__(self, make: Callable[[], AsyncBus]) -> None:
        super().__init__(make)
        _open.add(self)

    # Receiving and serving.

    @overload
    def subscribe(
        self, pattern: str, *, handler: Callable[[Message], object] | None = None, **options: Unpack[SubscribeOptions]
    ) -> Subscription[Message]: ...
    @overload
    def subscribe(
        self,
        pattern: type[T],
        below: str,
        *,
        handler: Callable[[Received[T]], object] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[Received[T]]: ...
    @signed_as(AsyncBus.subscribe)
    def subscribe(
        self, pattern: Any, *below: Any, handler: Any = None, concurrency: int = 1, **options: Any
    ) -> Subscription[Any]:
        """Subscribe to the topics that match, and return the registered subscription.

        A handler runs in `concurrency` threads. Rules that are callables run in the bus's own thread and must not use
        the bus.
        """
        called, pool = in_threads("handler", handler, concurrency)

        async def subscribed() -> Any:
            return await self._inner.subscribe(pattern, *below, handler=called, concurrency=concurrency, **options)

        return Subscription(self._portal, self._portal.call(subscribed), pool)

    @overload
    def serve(
        self,
        topic: str,
        handler: Callable[[Message], object] | None = None,
        *,
        ask: Callable[[Message], object] | None = None,
        **options: Unpack[ServeOptions],
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
        **options: Unpack[ServeOptions],
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
        **options: Unpack[ServeOptions],
    ) -> Service[TypedRequest[T]]: ...
    @signed_as(AsyncBus.serve)
    def serve(
        self, topic: Any, *more: Any, handler: Any = None, ask: Any = None, concurrency: int = 64, **options: Any
    ) -> Service[Any]:
        """Serve the requests on a topic, with the results of the handler or by iterating over the requests.

        The handler runs in `concurrency` threads. A handler that is a generator replies with each item. `ask` runs in
        separate threads.
        """
        below, given = ((), more) if isinstance(topic, str) else (more[:1], more[1:])
        called, pool = in_threads("handler", given[0] if given else handler, concurrency)
        willing, ask_pool = in_threads("ask", ask, _ASK_THREADS)
        serve: Any = self._inner.serve

        async def serving() -> Any:
            return await serve(topic, *below, handler=called, ask=willing, concurrency=concurrency, **options)

        wrap = Request if isinstance(topic, str) else TypedRequest
        return Service(self._portal, self._portal.call(serving), wrap, pool, ask_pool)

    @overload
    def channel(
        self,
        stream: str,
        name: str,
        *,
        handler: Callable[[Message], object] | None = None,
        **options: Unpack[ChannelOptions],
    ) -> Channel: ...
    @overload
    def channel(
        self,
        protocol: type[T],
        stream: str,
        name: str,
        /,
        *,
        handler: Callable[[Delivered[T]], object] | None = None,
        **options: Unpack[ChannelOptions],
    ) -> TypedChannel[T]: ...
    @signed_as(AsyncBus.channel)
    def channel(
        self,
        stream: Any,
        name: str,
        channel: str | None = None,
        *,
        handler: Any = None,
        concurrency: int = 1,
        **options: Any,
    ) -> Channel | TypedChannel[Any]:
        """Consume a channel of a stream; delivery starts at once. A handler runs in `concurrency` threads."""
        called, pool = in_threads("handler", handler, concurrency)
        kind, stream, name = kind_and_names(stream, name, channel)
        read: Callable[[Message], Delivered[Any]] | None = None
        if kind is not None:
            read = reading(kind, Delivered)
            options["topic"] = kind.channel_topic(options.get("topic"))
            called = None if called is None else handling(read, called)

        async def consumed() -> Channel:
            inner = self._inner.channel(stream, name, handler=called, concurrency=concurrency, **options)
            channel = Channel(self._portal, inner, pool)
            await inner.start()
            return channel

        consumer = self._portal.call(consumed)
        return consumer if read is None else TypedChannel(consumer, read)

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
        _open.discard(self)
        super()._end(ending)


_open: "WeakSet[Bus]" = WeakSet()
"""The buses that may still have messages to send when the process ends."""


@atexit.register
def _close_all() -> None:
    """Close every open bus at exit, so that the last publishes of a script are still sent."""
    for bus in list(_open):
        bus.close()
