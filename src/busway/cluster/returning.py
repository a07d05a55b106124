"""A node that is back hears from its mirror what became of its channels meanwhile, and says when it has noted that.

A driver; `heir` is the other side.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from busway.broker.progress import Entry, rebuild
from busway.cluster.mirror_words import Back, Took, Word

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Returning:
    """What comes back to one broker."""

    def __init__(self, hub: "Hub", send: Callable[[int, Word], None]) -> None:
        self._hub = hub
        self._send = send
        self._back: dict[tuple[int, str], list[Entry]] = {}
        """What comes back of the channels of a stream, by link, until all of it is here."""
        self._links: set[int] = set()
        """Those that wait until it is noted."""
        self._absorbing: list[asyncio.Future[None]] = []

    def heard(self, conn: int, back: Back) -> None:
        """A mirror has handed out for this node."""
        entries = self._back.setdefault((conn, back.name), [])
        entries += back.entries
        if back.more:
            return
        del self._back[conn, back.name]
        stream = self._hub.streaming.streams.get(back.name)
        if stream is not None and stream.config.store != "db":
            told = self._hub.delivering.standing.absorb(stream, rebuild(entries), back.made, back.gone)
            self._absorbing += [one for one in told if not one.done()]
        if back.last:
            self._links.add(conn)
            self._took(conn)

    def closed(self, conn: int) -> None:
        self._links.discard(conn)
        for key in [key for key in self._back if key[0] == conn]:
            del self._back[key]

    def _took(self, conn: int) -> None:
        """Tell the mirror when everything is written."""
        self._absorbing = [one for one in self._absorbing if not one.done()]
        if self._absorbing:
            self._absorbing[0].add_done_callback(lambda _: self._took(conn))
        elif conn in self._links:
            self._links.discard(conn)
            self._send(conn, Took())
            self._hub.loop.call_soon(self._hub.flush)
