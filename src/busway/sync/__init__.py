"""The blocking API of Busway: `busway.sync.connect` and `busway.sync.serve`, with the names of the asyncio API.

::

    with busway.sync.connect("tcp://127.0.0.1:7420") as bus, bus.subscribe("price/**") as prices:
        for message in prices:
            print(message.topic, message.payload)
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from busway.broker import Server as AsyncServer
from busway.broker.server import State
from busway.broker.streams.table import Changes
from busway.client.bus import JITTER, RECONNECT, Credentials, ErrorHook, connect as _connect
from busway.client.connection.wait import Waits
from busway.cluster.config import Cluster
from busway.cluster.members.servers_file import Listed
from busway.common.durations import Duration
from busway.fields import Fields
from busway.gateway.json.config import Http
from busway.gateway.serve import serve as _serve
from busway.settings import TLS, Identity, Offline, Settings
from busway.streams import StreamConfig
from busway.sync.bus import Bus
from busway.sync.channel import Channel
from busway.sync.portal import Portal
from busway.sync.stream import Stream
from busway.sync.subscription import Events, Gathering, Request, Service, Subscription, TypedRequest
from busway.sync.typed_channel import Delivered, TypedChannel

_T = TypeVar("_T")

__all__ = [
    "Bus",
    "Channel",
    "Delivered",
    "Events",
    "Gathering",
    "Request",
    "Server",
    "Service",
    "Stream",
    "Subscription",
    "TypedChannel",
    "TypedRequest",
    "connect",
    "serve",
]


class Server:
    """A broker in the process's loop thread. It serves from its creation until stop() or the end of its `with`."""

    def __init__(
        self,
        *addresses: str,
        name: str,
        settings: Settings | None,
        tls: TLS | None,
        fields: Fields | None,
        data: str | PathLike[str] | None,
        stores: Mapping[str, str] | None,
        cluster: str | Cluster | None,
        servers: str | Sequence[str | Listed] | None,
        key: str | bytes | None,
        http: str | Http | None,
        insecure: bool,
    ) -> None:
        self._portal = Portal.acquire()

        async def started() -> AsyncServer:
            more: dict[str, Any] = {"cluster": cluster, "servers": servers, "key": key, "http": http, "stores": stores}
            more["insecure"] = insecure
            server = _serve(*addresses, name=name, settings=settings, tls=tls, fields=fields, data=data, **more)
            return await server.start()

        try:
            self._inner = self._portal.call(started)
        except BaseException:
            self._portal.release()
            raise
        self._released = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses for clients on this host, with the actual ports."""
        return self._inner.addresses

    @property
    def bound(self) -> tuple[str, ...]:
        """Addresses that the broker listens on, such as `tcp://0.0.0.0:7420`, with the actual ports."""
        return self._inner.bound

    @property
    def http(self) -> str | None:
        """Address of the JSON door; None: there is none."""
        return self._inner.http

    @property
    def storage(self) -> Literal["memory", "disk"]:
        """The default store of streams: disk if the broker has a data folder, else memory."""
        return self._inner.storage

    @property
    def stream_changes(self) -> Changes:
        """Counter of streams that were created, changed or removed, in `count`."""
        return self._inner.stream_changes

    def streams(self) -> dict[str, StreamConfig]:
        """The current streams, by name."""
        return self._in_loop(self._inner.streams)

    def stream_of(self, topic: str) -> StreamConfig | None:
        """The stream that currently stores a topic; None: the default stream."""
        return self._in_loop(lambda: self._inner.stream_of(topic))

    def services(self) -> list[str]:
        """Topics of the services that clients of this broker provide."""
        return self._in_loop(self._inner.services)

    @property
    def guid(self) -> str:
        return self._inner.guid

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    def connect(
        self,
        *,
        name: str = "",
        fields: Fields | None = None,
        timeout: Duration = 5.0,
        reconnect: Sequence[Duration] | None = RECONNECT,
        jitter: float = JITTER,
        offline: Offline = "fail",
        credentials: Credentials = None,
        drain: Duration = 5.0,
        on_error: ErrorHook | None = None,
        identity: Identity | None = None,
    ) -> Bus:
        """A client of this broker, connected in memory."""
        return Bus(
            lambda: self._inner.connect(
                name=name,
                fields=fields,
                timeout=timeout,
                reconnect=reconnect,
                jitter=jitter,
                offline=offline,
                credentials=credentials,
                drain=drain,
                on_error=on_error,
                identity=identity,
            )
        )

    def stats(self) -> dict[str, Any]:
        """The broker's counters."""
        return self._in_loop(self._inner.stats)

    @property
    def state(self) -> State:
        """State of the broker's life cycle."""
        return self._inner.state

    def overview(self) -> dict[str, Any]:
        """The data of `busway info`, without the connections."""
        return self._in_loop(self._inner.overview)

    def figures(self) -> dict[str, Any]:
        """The overview, with the data of `busway cluster` as `nodes`."""
        return self._portal.call(self._inner.figures)

    def _in_loop(self, read: Callable[[], _T]) -> _T:
        """Call a plain function of the broker in the loop thread."""

        async def called() -> _T:
            return read()

        return self._portal.call(called)

    def start(self) -> Self:
        """Return this server, which already serves."""
        return self

    def serve_forever(self) -> None:
        """Return when the broker has been stopped. An interrupt stops it."""
        try:
            self._portal.call(self._inner.serve_forever)
        finally:
            self.stop()

    def stop(self, drain: Duration | None = None) -> None:
        """Accept no more clients, write all waiting output within `drain` seconds, and close."""
        if self._released or self._portal.foreign:
            return
        self._released = True
        try:
            self._portal.call(lambda: self._inner.stop(drain))
        finally:
            self._portal.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    *addresses: str,
    name: str = "",
    settings: Settings | None = None,
    tls: TLS | None = None,
    fields: Fields | None = None,
    data: str | PathLike[str] | None = None,
    stores: Mapping[str, str] | None = None,
    cluster: str | Cluster | None = None,
    servers: str | Sequence[str | Listed] | None = None,
    key: str | bytes | None = None,
    http: str | Http | None = None,
    insecure: bool = False,
) -> Server:
    """Start a broker on these addresses and in memory, with the arguments of busway.serve()."""
    more: dict[str, Any] = {"cluster": cluster, "servers": servers, "key": key, "http": http, "stores": stores}
    more["insecure"] = insecure
    return Server(*addresses, name=name, settings=settings, tls=tls, fields=fields, data=data, **more)


def connect(
    *urls: str,
    name: str = "",
    fields: Fields | None = None,
    timeout: Duration = 5.0,
    wait: Waits = False,
    reconnect: Sequence[Duration] | None = RECONNECT,
    jitter: float = JITTER,
    offline: Offline = "fail",
    tls: TLS | None = None,
    credentials: Credentials = None,
    drain: Duration = 5.0,
    on_error: ErrorHook | None = None,
    identity: Identity | None = None,
    learn: bool = True,
) -> Bus:
    """Connect to the first of these addresses that answers, with the arguments of busway.connect().

    `on_error` is called in the bus's own thread and must not use the bus.
    """
    return Bus(
        lambda: _connect(
            *urls,
            name=name,
            fields=fields,
            timeout=timeout,
            wait=wait,
            reconnect=reconnect,
            jitter=jitter,
            offline=offline,
            tls=tls,
            credentials=credentials,
            drain=drain,
            on_error=on_error,
            identity=identity,
            learn=learn,
        )
    )
