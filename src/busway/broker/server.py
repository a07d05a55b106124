"""`busway.serve`: a broker with its listeners, from start to drained stop."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from types import NoneType, TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from busway.broker.admin import services
from busway.broker.exposure import CLOSED, Exposure
from busway.broker.hub import Hub
from busway.broker.peers import Peers
from busway.broker.retained.pin_entries import Pin
from busway.broker.retained.pin_file import PinFile
from busway.broker.session import Session
from busway.broker.storage.data_folder import DataFolder
from busway.broker.streams.manager import Changes
from busway.broker.streams.stores.names import check_stores
from busway.client.bus import JITTER, RECONNECT, Bus, Credentials, ErrorHook
from busway.common import environment
from busway.common.checks import check_timeout, check_type
from busway.common.durations import Duration
from busway.errors import Closed, Code, LocalProtocolError
from busway.fields import Fields, encode_fields
from busway.settings import TLS, Identity, Offline, Settings
from busway.streams import StreamConfig
from busway.transport import Address, Listener, listen, parse
from busway.transport.interfaces import is_exposed


class Door(Protocol):
    """Made before the server starts, opened when it listens, closed before its clients are told to go."""

    kind: str
    """Its name among the doors of a server, such as `http`."""

    @property
    def address(self) -> str:
        """Where it is reached, real port filled in."""

    async def open(self) -> None:
        """Let clients in."""

    async def close(self, seconds: float) -> None:
        """Take no more, tell those that are there, let what waits for them flow out within so many seconds."""


log = logging.getLogger("busway.broker")

State: TypeAlias = Literal["new", "serving", "stopping", "stopped"]

_LOOK: Final = 0.01
"""Seconds between two looks at the outboxes while draining."""
_GOODBYE: Final = 1.0
"""Seconds that connections have to end when CLOSE was said."""
_STORING: Final = 1.0
"""Seconds of draining that messages have to be stored, so that their publishers hear so now rather than when they are back."""


class Server:
    """A broker. It serves from `start()` (or entering it) to `stop()` (or leaving it)."""

    def __init__(
        self,
        *addresses: str,
        name: str = "",
        settings: Settings | None = None,
        tls: TLS | None = None,
        fields: Fields | None = None,
        data: str | PathLike[str] | None = None,
        stores: Mapping[str, str] | None = None,
        nodes: Callable[[Hub], Peers] | None = None,
        doors: Sequence[Callable[["Server"], Door]] = (),
        exposure: Exposure = CLOSED,
    ) -> None:
        check_type("name", name, str, "a str")
        check_type("settings", settings, (Settings, NoneType), "a busway.Settings or None")
        check_type("tls", tls, (TLS, NoneType), "a busway.TLS or None")
        check_type("fields", fields, (Mapping, NoneType), "a dict or None")
        check_type("data", data, (str, PathLike, NoneType), "the path of a folder or None")
        self._fields = encode_fields(fields or {})
        self._data = None if data is None else DataFolder(data)
        self._stores = check_stores(stores)
        self._pins: PinFile | None = None
        # Known before the start, so that clients of this process can be made.
        self.guid = (self._data and self._data.guid()) or f"{environment.randbits(128):032x}"
        self.name = name or socket.gethostname()
        self.settings = settings or Settings()
        if len(self._fields) > self.settings.fields:
            raise ValueError(
                f"fields of {len(self._fields)} bytes, but messages may have {self.settings.fields} (setting fields)"
            )
        self._tls = tls
        self._exposure = exposure
        self._nodes = nodes
        self._doors = [make(self) for make in doors]
        self._open: list[Door] = []
        self._asked: list[Address] = [parse(address) for address in addresses]
        for server in self.settings.servers:
            parse(server)  # a wrong one is found here, not by every client
        self._listeners: list[Listener] = []
        self._hub: Hub | None = None
        self._begun = False
        self._serving = False
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._deadline = math.inf

    async def start(self) -> Self:
        """Listen on every address; none is left open if one fails."""
        if self._begun:
            raise LocalProtocolError("this server has been started already; make a new one")
        self._begun = True
        try:
            await self._refuse_exposed()
            found = await self._open_data()
            hub = Hub(
                self.settings,
                self.name,
                self.guid,
                fields=self._fields,
                pins=self._pins,
                found=found,
                folder=None if self._data is None else self._data.path,
                stores=self._stores,
                nodes=self._nodes,
            )
            self._hub = hub
            await hub.streams.open(clustered=self._nodes is not None)
            hub.disk.start()
            if self._nodes is not None:
                await hub.peers.members.prepare()
            else:
                hub.streams.without_mirror()
            for address in [Address("memory", path=self.guid), *self._asked]:
                factory = partial(Session, hub, address.scheme)
                listener = await listen(address, factory, tls=self._tls, handshake=self.settings.handshake)
                self._listeners.append(listener)
        except BaseException:
            self._close_listeners()
            if self._hub is not None:
                self._hub.clock.stop()
                self._hub.disk.stop()
                await self._hub.peers.members.stop()
                await self._hub.peers.members.end()
            await self._close_data()
            raise
        hub.addresses = self.addresses
        hub.clock.start()
        hub.clock.arm()
        hub.peers.members.start(self.bound)
        try:
            for door in self._doors:
                self._open.append(door)
                await door.open()
            hub.http = self.http
        except BaseException:
            await self.stop(0.0)
            raise
        self._serving = True
        places = [*self.bound, *(door.address for door in self._open)]
        log.info("bus %s (%s) listens on %s", self.name, self.guid, ", ".join(places) or "memory")
        return self

    async def _refuse_exposed(self) -> None:
        """Refuse, or if it is insecure warn of, native addresses that other hosts can reach without authentication."""
        asked = [one for one in self._asked if one.scheme in {"tcp", "tls"}]
        exposed = [one for one in asked if await is_exposed(one.host)]
        for text, at, lack in self._exposure.faults(exposed, self.settings, self._tls):
            self._exposure.open(text, at, lack)

    @property
    def bound(self) -> tuple[str, ...]:
        """The addresses it listens on, such as `tcp://0.0.0.0:7420`, real ports filled in."""
        return tuple(str(one.bound) for one in self._listeners if one.address.scheme != "memory")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients of this host connect to, real ports filled in. A server in memory only has none."""
        return tuple(str(one.address) for one in self._listeners if one.address.scheme != "memory")

    @property
    def http(self) -> str | None:
        """Where the JSON door listens, such as `http://127.0.0.1:15555`; None: there is none, or it is not open."""
        return next((door.address for door in self._open if door.kind == "http"), None)

    @property
    def storage(self) -> Literal["memory", "disk"]:
        """Where streams are stored that don't say so: on disk if the server has a data folder."""
        return "memory" if self._data is None else "disk"

    @property
    def stream_changes(self) -> Changes:
        """Its `count` is how often a stream was made, changed or removed: whoever remembers what streams() said looks at this first."""
        return self._running().streams.changes

    def streams(self) -> dict[str, StreamConfig]:
        """The streams as they are at this moment, by name."""
        return {name: stream.config for name, stream in self._running().streams.by_name.items()}

    def stream_of(self, topic: str) -> StreamConfig | None:
        """The stream that takes a topic at this moment; None: what is published durably on it goes to the default one."""
        found = self._running().streams.taking(topic)
        return None if found is None else found.config

    def services(self) -> list[str]:
        """Topics that clients of this broker serve.

        The engine does not tell when a service that is not shared is given up: it may still be among them while its client serves others.
        """
        hub = self._running()
        found: set[str] = set()
        for conn, session in hub.sessions.items():
            if session.served and hub.engine.connection(conn)["services"]:
                found.update(session.served.values())
        return sorted(found)

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
        """A client of this server, over memory."""
        return Bus(
            (f"memory:{self.guid}",),
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
            learn=False,  # it is a client of this server
        )

    def stats(self) -> dict[str, Any]:
        """The broker's counters."""
        return services.stats(self._running())

    @property
    def state(self) -> State:
        """Where it is in its life: not started or about to be, serving, stopping, or over."""
        if self._stopped.is_set():
            return "stopped"
        if self._stopping is not None:
            return "stopping"
        return "serving" if self._serving else "new"

    def overview(self) -> dict[str, Any]:
        """What `busway info` shows, but for the connections: `transports` counts those that came, `ended` those that went and why.

        `damaged` has the streams that could not be opened.
        """
        hub = self._running()
        return services.overview(hub) | {
            "transports": dict(hub.opened),
            "ended": dict(hub.ended),
            "damaged": dict(hub.streams.damaged),
        }

    async def figures(self) -> dict[str, Any]:
        """The overview, and as `nodes` what `busway cluster` shows: round trips are measured. None without a cluster."""
        members = self._running().peers.members
        return {"nodes": await members.figures() if members.clustered else None} | self.overview()

    async def serve_forever(self) -> None:
        """Return when the server has been stopped; stop it when this is cancelled."""
        self._running()
        try:
            await self._stopped.wait()
        finally:
            await self.stop()

    async def stop(self, drain: Duration | None = None) -> None:
        """Take no more clients, tell those that are there, let what waits for them flow out within `drain` seconds, close.

        Called again while it drains, it hurries: the shorter time counts.
        """
        seconds = check_timeout("drain", self.settings.drain if drain is None else drain, forever=False)
        if self._hub is None or self._stopped.is_set():
            return
        self._deadline = min(self._deadline, self._hub.loop.time() + seconds)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._hub), name="busway stop")
        await asyncio.shield(self._stopping)

    def _kill(self) -> None:
        """Let go of everything as a process does that is killed: nothing is said, nothing is written. For simulations."""
        self._close_listeners()
        if self._hub is not None:
            self._hub.clock.stop()
            self._hub.disk.stop()
            self._hub.server_list.stop()
            self._hub.channels.kill()
            self._hub.peers.members.kill()
            for conn in self._hub.sessions:  # the engine holds what it writes to
                self._hub.engine.disconnect(conn)
        if self._pins is not None:
            self._pins.close()
        if self._data is not None:
            self._data.close()

    async def _stop(self, hub: Hub) -> None:
        try:
            self._close_listeners()
            await self._close_doors(hub)
            await hub.peers.members.stop()
            hub.server_list.leave()
            hub.engine.away()
            hub.channels.stop_delivering()
            hub.flush()
            await self._flow_out(hub)
            # Clients first: what they have sent still has to cross the links.
            _part(hub, links=False)
            await self._wait_for_clients(hub)
            if any(session.node for session in hub.everyone):
                await self._flow_out(hub, links=True)
            hub.peers.members.clients_gone()
            hub.flush()
            _part(hub, links=True)
            await self._wait_until_empty(hub, min(_GOODBYE, max(self._deadline - hub.loop.time(), 0.1)))
        finally:
            hub.clock.stop()
            hub.disk.stop()
            hub.server_list.stop()
            hub.admin.stop()
            for session in list(hub.everyone):
                session.abort()
            await self._wait_until_empty(hub, 1.0)  # connection_lost of those that were aborted
            await hub.peers.members.end()
            await self._close_data()
            self._stopped.set()

    async def _close_doors(self, hub: Hub) -> None:
        """One after the other, the last one first; what goes wrong with one harms nothing else."""
        while self._open:
            door = self._open.pop()
            try:
                await door.close(max(self._deadline - hub.loop.time(), 0.0))
            except Exception:
                log.exception("unexpected error while the door %s was closed", door.kind)

    async def _open_data(self) -> list[Pin]:
        """Claim the data folder; the pins in it."""
        if self._data is None:
            return []
        self._data.open()
        if (guid := self._data.guid()) is not None:
            self.guid = guid
        else:
            self._data.remember(self.guid)
        self._pins = PinFile(self._data.path)
        return await self._pins.start()

    async def _close_data(self) -> None:
        if self._hub is not None:
            await self._hub.channels.close()
            await self._hub.streams.close()
        if self._pins is not None:
            await self._pins.stop()
        if self._data is not None:
            self._data.close()

    async def _flow_out(self, hub: Hub, *, links: bool = False) -> None:
        """Wait until nothing arrives any more, nothing is in flight or about to be stored, and nothing waits to be written.

        Other nodes go on sending as long as clients are here, so what they send counts only if it is about the `links`.
        """
        before = -1
        patience = hub.loop.time() + _STORING
        while hub.sessions:
            stats = hub.engine.stats()
            arrived = stats["received_bytes"] - (0 if links else _from_links(hub))
            quiet, before = arrived == before, arrived
            still = stats["pending"] or stats["aside_bytes"] or hub.services.asking.pending
            if not still and hub.loop.time() < patience:
                still = hub.streams.storing or hub.channels.acks.pending
            if quiet and not still and _written(hub):
                return
            if hub.loop.time() >= self._deadline:
                log.warning("not everything flowed out in time")
                return
            await asyncio.sleep(_LOOK)

    async def _wait_for_clients(self, hub: Hub) -> None:
        """Wait until only links are left, or the time is over."""
        patience = min(self._deadline, hub.loop.time() + _GOODBYE)
        while hub.loop.time() < patience:
            if all(session.node for session in hub.everyone):
                return
            await asyncio.sleep(_LOOK)

    async def _wait_until_empty(self, hub: Hub, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await hub.empty.wait()
        except TimeoutError:
            log.debug("%d connections are still there", len(hub.everyone))

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _running(self) -> Hub:
        if self._hub is None:
            raise Closed("this server has not been started")
        return self._hub

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _part(hub: Hub, *, links: bool) -> None:
    """Say CLOSE to the clients, or to all."""
    for session in list(hub.everyone):
        if links or not session.node:
            session.close(Code.GOING_AWAY, "the broker stops")
    hub.flush()


def _from_links(hub: Hub) -> int:
    """Bytes that came from other nodes."""
    return sum(hub.engine.connection(conn)["received_bytes"] for conn, one in hub.sessions.items() if one.node)


def _written(hub: Hub) -> bool:
    """Whether nothing waits in an outbox or a transport, and nobody is held up with more."""
    return all(
        hub.engine.pending(conn) == 0 and session.transport.get_write_buffer_size() == 0 and not session.paused
        for conn, session in hub.sessions.items()
    )
