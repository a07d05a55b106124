"""The verbs subscribe and serve of a Bus, for plain payloads and for those of protocols.

The Bus inherits SubscribeVerbs.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from busway.client.connection.core import Core
from busway.client.services.ask_callback import Willing
from busway.client.services.service import Responder, Service
from busway.client.subscriptions.inbox import Handler
from busway.client.subscriptions.subscription import Subscription
from busway.client.typed.protocol import Declares, Received, UndeclaredClass, kind_for
from busway.client.typed_wrappers.wrappers import TypedService, TypedSubscription
from busway.common.checks import check_callable
from busway.common.durations import Duration
from busway.common.options import takes_options
from busway.fields import Extra, Where, compile_where
from busway.positions import Since, encode_since
from busway.settings import Policy, Scope, Wait

T = TypeVar("T")
R = TypeVar("R")


class InboxOptions(TypedDict, total=False):
    """The keyword arguments of subscribe() that a Subscription takes unchanged."""

    notify: bool
    watch: bool
    listen: bool
    group: str
    echo: bool
    policy: Policy
    limit: int
    limit_bytes: int
    patience: Duration
    concurrency: int
    scope: Scope
    wait: Wait | None


class SubscribeOptions(InboxOptions, total=False):
    """The keyword arguments of subscribe(), without the handler."""

    where: Where | None
    extra: Extra | None
    since: Since | None


class ServeOptions(TypedDict, total=False):
    """The keyword arguments of serve(), without the functions."""

    shared: bool
    concurrency: int
    scope: Scope
    wait: Wait | None


class SubscribeVerbs:
    """The verbs of a Bus that make subscriptions and services."""

    _core: Core
    _drain: float

    @overload
    def subscribe(
        self, pattern: str, *, handler: Handler | None = None, **options: Unpack[SubscribeOptions]
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        pattern: type[T],
        below: str,
        *,
        handler: Callable[[Received[T]], object] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> TypedSubscription[T]: ...

    @takes_options(Subscription)
    def subscribe(
        self,
        pattern: str | type[Any],
        below: str = "",
        *,
        where: Where | None = None,
        extra: Extra | None = None,
        since: Since | None = None,
        handler: Callable[[Any], object] | None = None,
        **options: Unpack[InboxOptions],
    ) -> Subscription | TypedSubscription[Any]:
        """Messages whose topic matches: `a/*/c`, `a/**`, or a regular expression `re:a/[0-9]+`.

        ::

            async with bus.subscribe("price/*") as prices:
                async for message in prices:
                    print(message.topic, message.payload)

        Each message is delivered to one subscription of a `group`. When more than `limit` messages or `limit_bytes`
        bytes wait, `policy` decides. Under `block` publishers wait for a consumer that takes messages, and for
        `patience` seconds for one that takes none. A `handler` is called with each message, by `concurrency` tasks.
        `subscribe(Hello, "alice")` delivers the messages of a protocol, on topics below its prefix.

        With `since` stored messages come first: "all", those of the last "1h" or timedelta, those from a time on, or
        those behind a position. Live messages follow without gap or repeat. The last message of the backlog is
        marked. A subscription that can't keep up falls behind and catches up, so it misses no stored message.

        `where` are rules on the fields, one for each name, and `extra` names the other fields that are allowed, or is
        a function that checks them. The client calls rules that are functions; the broker checks all others. Retained
        messages come first. With `notify` a message of the kind "notify" follows the last of them. With `watch` a
        message of the kind "withdrawn" reports each retained message that was withdrawn. With `listen` it gets copies
        of pushes and requests, and is no consumer of them.

        In a cluster `scope` is "global", "local" for messages of clients of the same node, or "remote" for those of
        clients of the other nodes. With wait="cluster" entering it waits until every node that the broker is linked
        to knows of it.
        """
        check_callable("handler", handler)
        kind = None if isinstance(pattern, str) else kind_for(pattern)
        subscription = Subscription(
            self._core,
            pattern if isinstance(pattern, str) else kind_for(pattern).pattern(below),
            rules=compile_where(where, extra),
            since=encode_since(since),
            handler=handler if kind is None or handler is None else kind.handler(handler),
            drain=self._drain,
            **options,
        )
        return subscription if kind is None else TypedSubscription(subscription, kind)

    @overload
    def serve(
        self,
        topic: str,
        handler: Responder | None = None,
        *,
        ask: Willing | None = None,
        **options: Unpack[ServeOptions],
    ) -> Service: ...

    @overload
    def serve(
        self,
        topic: type[Declares[T, R]],
        below: str,
        /,
        handler: Callable[[T], R | Awaitable[R] | AsyncGenerator[R, Any]] | None = None,
        *,
        ask: Callable[[T], bool | Awaitable[bool]] | None = None,
        **options: Unpack[ServeOptions],
    ) -> TypedService[T]: ...

    @overload
    def serve(
        self,
        topic: UndeclaredClass[T],
        below: str,
        /,
        handler: Callable[[T], object] | None = None,
        *,
        ask: Callable[[T], bool | Awaitable[bool]] | None = None,
        **options: Unpack[ServeOptions],
    ) -> TypedService[T]: ...

    @takes_options(Service)
    def serve(
        self, topic: Any, *more: Any, handler: Any = None, ask: Any = None, **options: Unpack[ServeOptions]
    ) -> Service | TypedService[Any]:
        """Answer the requests on a topic: a handler returns the replies, or the program iterates over the requests.

        ::

            async with bus.serve("sum", lambda message: sum(message.json())):
                ...

        A handler that is an async generator replies with each item. If a topic has several `shared` services, the
        request says whether one answers or all. `ask` is called with the request first, and returns whether this
        service is willing. `serve(HelloRequest, "", handler)` answers the requests of a protocol; the handler takes
        and returns typed values.

        In a cluster `scope` is "global", "local" for requests of clients of the same node, or "remote" for those of
        clients of the other nodes. With wait="cluster" entering it waits until every node that the broker is linked
        to knows of it.
        """
        if len(more) > (1 if isinstance(topic, str) else 2) or (
            more and handler is not None and isinstance(topic, str)
        ):
            raise TypeError(
                "serve() takes a topic and a handler, or a protocol, a topic below its prefix and a handler"
            )
        if isinstance(topic, str):
            (handler,) = more or (handler,)
            return Service(self._core, topic, handler, ask=ask, drain=self._drain, **options)
        kind = kind_for(topic)
        below, handler = (more[0] if more else ""), (more[1] if len(more) > 1 else handler)
        full = kind.topic(below)
        answer = None if handler is None else kind.answering(handler)
        willing: Any = kind.asking(ask) if callable(ask) else ask
        service = Service(self._core, full, answer, ask=willing, drain=self._drain, **options)
        return TypedService(service, kind, lambda error: self._core.report(error, "a request", full))
