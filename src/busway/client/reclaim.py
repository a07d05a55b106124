"""What a server refuses to a client that comes back, but perhaps only for now: it is asked for again for a while.

The server that a client has left may believe for a while that it is still there, and says so to the others. So a service can be refused
because of the client's own connection of before, which nobody can tell from somebody else's; that one ends soon, another one's does not. Once
the servers that it has left are not linked to this one any more, because they have stopped, it can only be somebody else's.
And a channel can be refused because its server can't note that somebody consumes it: its disk fails, or its mirror may stand in for it.
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
"""Heartbeats in which a connection that is dead is known to be, everywhere: three for its server, three for a dead link, and some for the ways."""
_ASK: Final = 5.0
"""Seconds that a server has to say whom it is linked to."""
_FIRST: Final = 0.05
_LONGEST: Final = 1.0
"""Seconds between two attempts: they begin with the one, are doubled each time, and end with the other."""


class Reclaim:
    """What one client waits for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._here = ""
        self._beat = 0.0
        self._left: dict[str, float] = {}
        """Servers where it was, and until when they may believe that it still is."""
        self._tasks: set[asyncio.Task[None]] = set()

    def arrived(self, guid: str, heartbeat: float) -> None:
        """It has been greeted by this server."""
        now = self._core.loop.time()
        if self._here and self._here != guid:
            self._left[self._here] = now + _BEATS * self._beat
        self._left = {one: until for one, until in self._left.items() if until > now and one != guid}
        self._here, self._beat = guid, heartbeat

    def refused(self, connection: Connection, part: Registrant, error: BusError) -> None:
        """The server does not take back what was there before: tell that, now or when there is no more hope."""
        now = self._core.loop.time()
        until = now + _BEATS * self._beat if isinstance(error, StoreFailed) else max(self._left.values(), default=0.0)
        if not isinstance(error, ServiceTaken | StoreFailed) or until <= now:
            self._give_up(part, error)
            return
        log.warning("%r is refused, and asked for again for %.3g s: %s", part.label, until - now, error)
        task = self._core.loop.create_task(self._again(connection, part, until, error), name="busway regain")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """The connection is lost, or there will be no other: what is still wanted then is restored by the next."""
        for task in self._tasks:
            task.cancel()

    async def _again(self, connection: Connection, part: Registrant, until: float, error: BusError) -> None:
        core, pause = self._core, _FIRST
        while core.loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)
            if not part.live or core.connection is not connection:
                return  # closed meanwhile, or another connection deals with it
            try:
                hopeless = isinstance(error, ServiceTaken) and await self._forgotten()
                try:
                    await core.result(part.announce())
                except (ServiceTaken, StoreFailed) as still:
                    error = still
                    # Asked again, for a link may have come between the two.
                    if hopeless and isinstance(still, ServiceTaken) and await self._forgotten():
                        break
                    continue
            except Disconnected:
                return
            except BusError as other:
                error = other
                break
            else:
                log.info("%r is back", part.label)
                part.restored()
                return
        if part.live:
            self._give_up(part, error)

    async def _forgotten(self) -> bool:
        """Whether no server that it has left can tell the present one that it is still there."""
        core = self._core
        aux, each = limits(_ASK, None)
        number = core.session.send(REQUEST, "$bus/cluster", b"", aux=aux, each=each, fields=b"")
        try:
            found = (await core.answer(number, _ASK)).json()
            linked = {one["guid"] for one in found.get("nodes", ()) if one["state"] == "linked"}
        except Disconnected:
            raise
        except (BusError, ValueError, TypeError, KeyError):
            return False  # it does not say, so the time has to show
        finally:
            core.pending.pop(number)
        return linked.isdisjoint(self._left)

    def _give_up(self, part: Registrant, error: BusError) -> None:
        log.error("%r was refused after the reconnect: %s", part.label, error)
        self._core.events.emit(Event(kind="rejected", topic=part.label, error=error))
        part.ended(error)
