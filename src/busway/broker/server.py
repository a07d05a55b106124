"""The server of `busway.serve`: starts a broker with listeners, data folder and doors, and stops it after draining."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, Unpack

from busway.broker.access.authority import Authority
from busway.broker.admin import services
from busway.broker.exposure import CLOSED, Exposure
from busway.broker.hub import Hub
from busway.broker.peers import Peers
from busway.broker.retained.pin_file import Entry, PinJournal, pin_journal
from busway.broker.session import Session
from busway.broker.storage.data_folder import DataFolder
from busway.broker.streams.stores.names import check_stores
from busway.broker.streams.table import Changes
from busway.client.bus import Bus, ClientOptions
from busway.common import environment
from busway.common.checks import check_timeout, check_type
from busway.common.durations import Duration
from busway.common.options import takes_options
from busway.errors import BusError, Closed, Code, LocalProtocolError
from busway.fields import Fields, encode_fields
from busway.settings import TLS, Settings
from busway.streams import StreamConfig
from busway.transport import Address, Listener, listen, parse
from busway.transport.interfaces import is_exposed


class Door(Protocol):
    """An entrance for clients of another protocol: opened after the listeners, and closed before the native clients."""

    kind: str
    """The name of the door, such as `http`."""

    @property
    def address(self) -> str:
        """The address of the door, with its real port."""

    async def open(self) -> None:
        """Accept clients."""

    async def close(self, seconds: float) -> None:
        """Accept no more clients, close the connections, and deliver queued messages within so many seconds."""


log = logging.getLogger("busway.broker")

State: TypeAlias = Literal["new", "serving", "stopping", "stopped"]

_CHECK: Final = 0.01
"""Seconds between two checks of the outboxes while draining."""
_GOODBYE: Final = 1.0
"""Seconds that connections have to end after a CLOSE."""
_STORING: Final = 1.0
"""Seconds of draining in which messages are stored, so that publishers get their acknowledgements before the stop."""


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
        users: str | PathLike[str] | None = None,
        settle: Callable[[Path, str], str] = lambda folder, guid: guid,  # noqa: ARG005
    ) -> None:
        """`settle` gives up what other brokers own now, before the data folder is read. It returns the broker's guid."""
        check_type("name", name, str, "a str")
        check_type("settings", settings, (Settings, NoneType), "a busway.Settings or None")
        check_type("tls", tls, (TLS, NoneType), "a busway.TLS or None")
        check_type("fields", fields, (Mapping, NoneType), "a dict or None")
        check_type("data", data, (str, PathLike, NoneType), "the path of a folder or None")
        check_type("users", users, (str, PathLike, NoneType), "the path of a users file or None")
        self._fields = encode_fields(fields or {})
        self._data = None if data is None else DataFolder(data)
        self._stores = check_stores(stores)
        self._pins: PinJournal | None = None
        # Set before the start, so that clients of this process can be created.
        self.guid = (self._data and self._data.guid()) or f"{environment.randbits(128):032x}"
        self.name = name or socket.gethostname()
        self.settings = settings or Settings()
        if len(self._fields) > self.settings.fields:
            raise ValueError(
                f"the fields have {len(self._fields)} bytes, the limit is {self.settings.fields} (setting fields)"
            )
        self._tls = tls
        self.authority = Authority(None if users is None else Path(users))
        self._exposure = replace(exposure, users=users is not None)
        self._nodes = nodes
        self._settle = settle
        self._make_doors = tuple(doors)
        self._doors = [make(self) for make in doors]
        self._open: list[Door] = []
        self._asked: list[Address] = [parse(address) for address in addresses]
        for server in self.settings.servers:
            parse(server)  # raises for an invalid address, before clients get it
        self._listeners: list[Listener] = []
        self._hub: Hub | None = None
        self._begun = False
        self._serving = False
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._deadline = math.inf

    async def start(self) -> Self:
        """Listen on every address. If one fails, all are closed."""
        if self._begun:
            raise LocalProtocolError("this server has been started already; create a new one")
        self._begun = True
        return await self._start()

    async def _start(self) -> Self:
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
                authority=self.authority,
                restart=self._restart_soon,
            )
            self._hub = hub
            await hub.streams.open(clustered=self._nodes is not None)
            hub.disk.start()
            if self._nodes is not None:
                await hub.peers.members.prepare()
            else:
                hub.streams.without_mirror()
            for address in [Address("memory", path=self.guid), *self._asked]:
                factory = partial(Session, hub.runtime, address.scheme)
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
        hub.runtime.addresses = self.addresses
        hub.clock.start()
        hub.clock.arm()
        hub.rates.start()
        hub.revocation.start()
        hub.peers.members.start(self.bound)
        try:
            for door in self._doors:
                self._open.append(door)
                await door.open()
            hub.runtime.http = self.http
        except BaseException:
            await self.stop(0.0)
            raise
        self._serving = True
        listening = [*self.bound, *(door.address for door in self._open)]
        log.info("bus %s (%s) listens on %s", self.name, self.guid, ", ".join(listening) or "memory")
        return self

    async def _refuse_exposed(self) -> None:
        """Refuse native addresses that other hosts can reach without authentication, or warn of them if `insecure`."""
        network = [address for address in self._asked if address.scheme in {"tcp", "tls"}]
        exposed = [address for address in network if await is_exposed(address.host)]
        for text, at, lack in self._exposure.faults(exposed, self.settings, self._tls):
            self._exposure.open(text, at, lack)

    @property
    def bound(self) -> tuple[str, ...]:
        """The addresses that the server listens on, such as `tcp://0.0.0.0:7420`, with real ports."""
        return tuple(str(listener.bound) for listener in self._listeners if listener.address.scheme != "memory")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for clients on this host, with real ports. A server in memory only has none."""
        return tuple(str(listener.address) for listener in self._listeners if listener.address.scheme != "memory")

    @property
    def http(self) -> str | None:
        """The address of the JSON door, such as `http://127.0.0.1:15555`; None: there is none, or it is closed."""
        return next((door.address for door in self._open if door.kind == "http"), None)

    @property
    def storage(self) -> Literal["memory", "disk"]:
        """The default store of streams: on disk if the server has a data folder."""
        return "memory" if self._data is None else "disk"

    @property
    def stream_changes(self) -> Changes:
        """Counts how often streams were created, changed or removed. Callers that cache streams() compare `count`."""
        return self._running().streams.changes

    def streams(self) -> dict[str, StreamConfig]:
        """The current settings of all streams, by name."""
        return {name: stream.config for name, stream in self._running().streams.by_name.items()}

    def stream_of(self, topic: str) -> StreamConfig | None:
        """The stream that takes durable publishes on a topic now; None: the default stream."""
        found = self._running().streams.taking(topic)
        return None if found is None else found.config

    def services(self) -> list[str]:
        """The topics that clients of this broker serve.

        The engine does not report the end of a service that is not shared, so it stays listed while its client serves
        others.
        """
        hub = self._running()
        found: set[str] = set()
        for conn, session in hub.sessions.items():
            if session.served and hub.engine.connection(conn)["services"]:
                found.update(session.served.values())
        return sorted(found)

    @takes_options(Bus)
    def connect(self, **options: Unpack[ClientOptions]) -> Bus:
        """Create a client of this server that is connected in memory."""
        return Bus((f"memory:{self.guid}",), learn=False, **options)  # the client stays at this server

    def stats(self) -> dict[str, Any]:
        """The broker's counters."""
        return services.stats(self._running())

    @property
    def state(self) -> State:
        """The state: "new" until it serves, "serving", "stopping" or "stopped"."""
        if self._stopped.is_set():
            return "stopped"
        if self._stopping is not None:
            return "stopping"
        return "serving" if self._serving else "new"

    def overview(self) -> dict[str, Any]:
        """The figures of `busway info` without the list of connections.

        `transports` counts opened connections, `ended` closed ones by reason, and `damaged` has the streams that could
        not be opened.
        """
        hub = self._running()
        return services.overview(hub) | {
            "transports": dict(hub.runtime.opened),
            "ended": dict(hub.runtime.ended),
            "damaged": dict(hub.streams.damaged),
        }

    async def figures(self) -> dict[str, Any]:
        """The overview, and as `nodes` the figures of `busway cluster` with measured round trips, or None."""
        members = self._running().peers.members
        return {"nodes": await members.figures() if members.clustered else None} | self.overview()

    def reload_users(self) -> bool:
        """Read the users file again. False: it is invalid, so the old users stay; the log has the line of the error.

        The server does this by itself within a second after a change of the file.
        """
        return self._running().revocation.reload()

    async def serve_forever(self) -> None:
        """Wait until the server has been stopped. A cancelled call stops it."""
        self._running()
        try:
            await self._stopped.wait()
        finally:
            await self.stop()

    async def stop(self, drain: Duration | None = None) -> None:
        """Accept no more clients, deliver queued messages within `drain` seconds, and close all connections.

        A second call while it drains can only shorten the time.
        """
        seconds = check_timeout("drain", self.settings.drain if drain is None else drain, forever=False)
        if self._restarting is not None:
            await asyncio.wait([self._restarting])
        if self._hub is None or self._stopped.is_set():
            return
        self._deadline = min(self._deadline, self._hub.loop.time() + seconds)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._hub), name="busway stop")
        await asyncio.shield(self._stopping)

    def _kill(self) -> None:
        """End like a killed process: no frames are sent, and nothing is written. For simulations."""
        self._close_listeners()
        if self._hub is not None:
            self._hub.clock.stop()
            self._hub.disk.stop()
            self._hub.rates.stop()
            self._hub.server_list.stop()
            self._hub.revocation.stop()
            self._hub.channels.kill()
            self._hub.peers.members.kill()
            for conn in self._hub.sessions:  # the engine has references to the transports
                self._hub.engine.disconnect(conn)
        if self._pins is not None:
            self._pins.kill()
        if self._data is not None:
            self._data.close()

    def _restart_soon(self) -> None:
        """Another broker owns the streams of this one: end all connections, and start again with what is left."""
        if self._stopping is None and self._restarting is None and self._hub is not None:
            self._restarting = asyncio.create_task(self._restart(self._hub), name="busway restart")

    async def _restart(self, hub: Hub) -> None:
        self._serving = False
        addresses = self.bound
        self._deadline = hub.loop.time()
        await self._end(hub)
        self._deadline, self._hub = math.inf, None
        self._listeners, self._asked = [], [parse(address) for address in addresses]
        self._doors = [make(self) for make in self._make_doors]
        if self._data is None:
            self.guid = f"{environment.randbits(128):032x}"
        try:
            await self._start()
        except BusError as error:
            log.error("bus %s can't start again: %s", self.name, error)  # noqa: TRY400, needs no traceback
            self._stopped.set()
        finally:
            self._restarting = None

    async def _stop(self, hub: Hub) -> None:
        try:
            await self._end(hub)
        finally:
            self._stopped.set()

    async def _end(self, hub: Hub) -> None:
        try:
            self._close_listeners()
            await self._close_doors(hub)
            await hub.peers.members.stop()
            hub.server_list.leave()
            hub.engine.away()
            hub.channels.consumers.stop_delivering()
            hub.flush()
            await self._drain(hub)
            # Clients first: their last messages still have to cross the links.
            _part(hub, links=False)
            await self._wait_for_clients(hub)
            if any(session.node for session in hub.everyone):
                await self._drain(hub, links=True)
            hub.flush()
            _part(hub, links=True)
            await self._wait_until_empty(hub, min(_GOODBYE, max(self._deadline - hub.loop.time(), 0.1)))
        finally:
            hub.clock.stop()
            hub.disk.stop()
            hub.rates.stop()
            hub.server_list.stop()
            hub.revocation.stop()
            hub.admin.stop()
            for session in list(hub.everyone):
                session.abort()
            await self._wait_until_empty(hub, 1.0)  # for connection_lost() of aborted sessions
            await hub.peers.members.end()
            await self._close_data()

    async def _close_doors(self, hub: Hub) -> None:
        """Close the doors in reverse order. An error of one is logged."""
        while self._open:
            door = self._open.pop()
            try:
                await door.close(max(self._deadline - hub.loop.time(), 0.0))
            except Exception:
                log.exception("unexpected error while the door %s was closed", door.kind)

    async def _open_data(self) -> list[Entry]:
        """Open the data folder. Returns the pins in it."""
        if self._data is None:
            return []
        self._data.open()
        known = self._data.guid()
        self.guid = self._settle(self._data.path, known or self.guid)
        if known != self.guid:
            self._data.remember(self.guid)
        self._pins = pin_journal(self._data.path)
        return await self._pins.start()

    async def _close_data(self) -> None:
        if self._hub is not None:
            await self._hub.channels.close()
            await self._hub.streams.close()
        if self._pins is not None:
            await self._pins.stop()
        if self._data is not None:
            self._data.close()

    async def _drain(self, hub: Hub, *, links: bool = False) -> None:
        """Wait until no more bytes arrive, no requests are in flight, and all messages are stored and written.

        Other nodes send as long as clients are connected, so their bytes count only with `links`.
        """
        before = -1
        patience = hub.loop.time() + _STORING
        while hub.sessions:
            stats = hub.engine.stats()
            arrived = stats["received_bytes"] - (0 if links else _from_links(hub))
            quiet, before = arrived == before, arrived
            busy = stats["pending"] or stats["aside_bytes"] or hub.services.asking.pending
            if not busy and hub.loop.time() < patience:
                busy = hub.streams.storing or hub.channels.consumers.acks.pending
            if quiet and not busy and _written(hub):
                return
            if hub.loop.time() >= self._deadline:
                log.warning("the server stops with undelivered messages, because the drain time is over")
                return
            await asyncio.sleep(_CHECK)

    async def _wait_for_clients(self, hub: Hub) -> None:
        """Wait until only links are left, or the time is over."""
        patience = min(self._deadline, hub.loop.time() + _GOODBYE)
        while hub.loop.time() < patience:
            if all(session.node for session in hub.everyone):
                return
            await asyncio.sleep(_CHECK)

    async def _wait_until_empty(self, hub: Hub, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await hub.runtime.empty.wait()
        except TimeoutError:
            log.debug("%d connections have not ended in time", len(hub.everyone))

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
    """Send CLOSE to the clients, and with `links` also to other nodes."""
    for session in list(hub.everyone):
        if links or not session.node:
            session.close(Code.GOING_AWAY, "the broker stops")
    hub.flush()


def _from_links(hub: Hub) -> int:
    """The number of bytes received from other nodes."""
    return sum(hub.engine.connection(conn)["received_bytes"] for conn, session in hub.sessions.items() if session.node)


def _written(hub: Hub) -> bool:
    """Whether all outboxes and transports are empty, and no session is paused."""
    return all(
        hub.engine.pending(conn) == 0 and session.transport.get_write_buffer_size() == 0 and not session.paused
        for conn, session in hub.sessions.items()
    )
