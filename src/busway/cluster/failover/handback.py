"""Hand-back: a node that is back applies the progress of its channels from its mirror, and confirms when it is written.

`ownership` calls it; `standby` is the other side. The progress of one take-over is applied once, however often it is
sent, since this node may have moved or re-created a channel in between.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from busway.broker.channels.driver import ProgressStore
from busway.broker.channels.state.progress import Entry, rebuild
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import Back, Took, Word

if TYPE_CHECKING:
    from busway.broker.hub import Hub

RETRY: Final = 1.0
"""Seconds until it is tried again to write what could not be written."""


class Handback:
    """The progress that mirrors hand back to one broker."""

    def __init__(self, hub: "Hub", known: KnownMirrors, send: Callable[[int, Word], None]) -> None:
        self._hub = hub
        self._known = known
        self._send = send
        self._back: dict[tuple[int, str], list[Entry]] = {}
        """What comes back of the channels of a stream, by link, until all of it is here."""
        self._taken: dict[tuple[str, str], int] = {}
        """What was taken in of a mirror's turn, by mirror and stream."""
        self._links: dict[int, tuple[str, int]] = {}
        """Those that wait until it is noted: of which mirror, and of which turn."""
        self._absorbing: dict[asyncio.Future[None], tuple[str, ProgressStore]] = {}
        """What is not written yet: of which stream, and where it is noted."""
        self._stopped = False

    def heard(self, conn: int, guid: str, back: Back) -> None:
        """A mirror has handed out for this node."""
        entries = self._back.setdefault((conn, back.name), [])
        entries += back.entries
        if back.more:
            return
        del self._back[conn, back.name]
        if not back.turn or back.turn not in (self._known.taken(guid), self._taken.get((guid, back.name))):
            self._absorb(back, entries)
            self._taken[guid, back.name] = back.turn
        if back.last:
            self._links[conn] = guid, back.turn
            self._look()

    def closed(self, conn: int) -> None:
        self._links.pop(conn, None)
        for key in [key for key in self._back if key[0] == conn]:
            del self._back[key]

    def stop(self) -> None:
        """The broker is about to stop: what is not written by then is told again when it is back."""
        self._stopped = True

    def _absorb(self, back: Back, entries: list[Entry]) -> None:
        delivering = self._hub.channels
        stream = self._hub.streams.by_name.get(back.name)
        journal = None if stream is None else delivering.journal_of(stream)
        if stream is None or journal is None or stream.config.in_database:
            return
        for told in delivering.ownership.absorb(stream, rebuild(entries), back.made, back.gone, back.turn):
            self._wait(back.name, journal, told)

    def _wait(self, name: str, journal: ProgressStore, told: "asyncio.Future[None]") -> None:
        if not _well(told):
            self._absorbing[told] = name, journal
            told.add_done_callback(self._written)

    def _written(self, told: "asyncio.Future[None]") -> None:
        if _well(told):
            del self._absorbing[told]
            self._look()
        else:
            self._hub.loop.call_later(RETRY, partial(self._again, told))

    def _again(self, failed: "asyncio.Future[None]") -> None:
        """What could not be written is known still, and goes with the next write. A mirror that forgot it meanwhile could not tell it again."""
        if self._stopped:
            return
        name, journal = self._absorbing.pop(failed)
        stream = self._hub.streams.by_name.get(name)
        if stream is not None and self._hub.channels.journal_of(stream) is journal:
            self._wait(name, journal, journal.write([]))
        self._look()  # or it was removed, and its channels with it

    def _look(self) -> None:
        """Tell mirrors when everything is written."""
        if self._absorbing or not self._links:
            return
        links, self._links = self._links, {}
        for conn, (guid, turn) in links.items():
            self._known.take(guid, turn)
            self._send(conn, Took())
        self._hub.loop.call_soon(self._hub.flush)


def _well(told: "asyncio.Future[None]") -> bool:
    """Whether it is written."""
    return told.done() and not told.cancelled() and told.exception() is None
