"""Reclaim: retries the registrations that a server refuses after a reconnect, as long as the reason may be temporary.

The lifecycle passes every refused registration to it. A service can be refused because of this client's previous
connection: the server that the client left may not have noticed the loss yet, and the other nodes can't tell this
connection from one of another client. The refusal ends with the heartbeat of that connection. Once the left servers
are not linked to the current one any more, the provider must be another client. A channel can be refused because its
server can't record its consumer: its disk fails, or its mirror may have taken over.
"""

import asyncio
import logging
from typing import Final

from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.registration import Registrant
from busway.client.connection.sender import REQUEST, limits
from busway.errors import BusError, Disconnected, ServiceTaken, StoreFailed

log = logging.getLogger("busway.client")

_BEATS: Final = 8
"""Heartbeats after which all nodes know of a dead connection: three at its server, three at a dead link, two spare."""
_ASK: Final = 5.0
"""Seconds that a server has to list the nodes that it is linked to."""
_MIN_PAUSE: Final = 0.05
"""Seconds before the first retry. The pause doubles with each retry."""
_MAX_PAUSE: Final = 1.0
"""Most seconds between two retries."""


class Reclaim:
    """The refused registrations of one client that it retries."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._server = ""
        self._heartbeat = 0.0
        self._left: dict[str, float] = {}
        """Previous servers, with the time until which they may take the client for connected."""
        self._tasks: set[asyncio.Task[None]] = set()

    def arrived(self, guid: str, heartbeat: float) -> None:
        """Record that the client is connected to this server now."""
        now = self._core.loop.time()
        if self._server and self._server != guid:
            self._left[self._server] = now + _BEATS * self._heartbeat
        self._left = {server: until for server, until in self._left.items() if until > now and server != guid}
        self._server, self._heartbeat = guid, heartbeat

    def refused(self, connection: Connection, registrant: Registrant, error: BusError) -> None:
        """Retry a registration that the server refused after a reconnect, or end it if a retry is pointless."""
        now = self._core.loop.time()
        until = max(self._left.values(), default=0.0)
        if isinstance(error, StoreFailed):
            until = now + _BEATS * self._heartbeat
        if not isinstance(error, ServiceTaken | StoreFailed) or until <= now:
            self._give_up(registrant, error)
            return
        log.warning("%r was refused after the reconnect, retrying for %.3g s: %s", registrant.label, until - now, error)
        task = self._core.loop.create_task(self._retry(connection, registrant, until, error), name="busway reclaim")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Stop all retries. The next connection, if there is one, restores the registrations again."""
        for task in self._tasks:
            task.cancel()

    async def _retry(self, connection: Connection, registrant: Registrant, until: float, error: BusError) -> None:
        core, pause = self._core, _MIN_PAUSE
        while core.loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
            if not registrant.live or core.connection is not connection:
                return  # it was closed, or the next connection restores it
            try:
                hopeless = isinstance(error, ServiceTaken) and await self._is_forgotten()
                try:
                    await core.result(registrant.announce())
                except (ServiceTaken, StoreFailed) as refusal:
                    error = refusal
                    # Check again: a link may have been made between the first check and the refusal.
                    if hopeless and isinstance(refusal, ServiceTaken) and await self._is_forgotten():
                        break
                    continue
            except Disconnected:
                return
            except BusError as other:
                error = other
                break
            else:
                log.info("%r is registered again", registrant.label)
                registrant.restored()
                return
        if registrant.live:
            self._give_up(registrant, error)

    async def _is_forgotten(self) -> bool:
        """Whether no previous server of this client is linked to the current one."""
        core = self._core
        aux, each = limits(_ASK, None)
        number = core.session.send(REQUEST, "$bus/cluster", b"", aux=aux, each=each, fields=b"")
        try:
            found = (await core.answer(number, _ASK)).json()
            linked = {node["guid"] for node in found.get("nodes", ()) if node["state"] == "linked"}
        except Disconnected:
            raise
        except (BusError, ValueError, TypeError, KeyError):
            return False  # unknown: retry until the time is up
        finally:
            core.pending.pop(number)
        return linked.isdisjoint(self._left)

    def _give_up(self, registrant: Registrant, error: BusError) -> None:
        log.error("%r was refused after the reconnect: %s", registrant.label, error)
        self._core.events.emit(Event(kind="rejected", topic=registrant.label, error=error))
        registrant.ended(error)
