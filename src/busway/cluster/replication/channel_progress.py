"""Tells mirrors what the channels of this node note, and has acknowledgements wait for them where a stream asks for that.

A driver over hearing.py, and a part of `mirroring`.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from busway.broker.channels.journal import Journal
from busway.broker.channels.state.progress import Delivered, Done, Entry, Redriven, Stamp
from busway.broker.streams.stream import Stream
from busway.cluster.replication.messages import Heard, Noted, Word
from busway.cluster.replication.progress_state import ProgressState
from busway.errors import StoreFailed
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_ENTRIES: Final = 256 * KiB
"""Bytes of entries, about, that are sent at once."""


class Unsure(StoreFailed):
    """It is noted here, and whether the mirror has it can't be told any more."""


@dataclass(slots=True)
class _Told:
    """A stream on its way to one mirror."""

    guid: str
    name: str
    number: int
    shown: int = 0
    """The serial of all that there was; 0: it is not told yet, and neither is anything else."""


class ChannelProgress:
    """What the mirrors of one broker hear of its channels."""

    def __init__(self, hub: "Hub", send: Callable[[int, Word], None], patience: float) -> None:
        self._hub = hub
        self._send = send
        self._patience = patience
        self._serials = count(1)
        self._told: dict[tuple[int, str], _Told] = {}
        """By link and stream."""
        self._hearings: dict[str, ProgressState] = {}

    @property
    def alone(self) -> int:
        return sum(one.alone for one in self._hearings.values())

    def begin(self, conn: int, guid: str, stream: Stream, number: int) -> None:
        """Tell a mirror of a stream, which it knows by this number."""
        if isinstance(journal := self._hub.channels.notes(stream), Journal):
            told = self._told[conn, stream.name] = _Told(guid, stream.name, number)
            if stream.config.safety == "mirrored":
                self._hearings.setdefault(stream.name, ProgressState(self._patience))
            journal.watcher = partial(self._noted, stream.name, journal)
            journal.look(partial(self._show, conn, told, journal))

    def changed(self, stream: Stream) -> None:
        """A stream has other settings."""
        if stream.config.safety != "mirrored" and (hearing := self._hearings.pop(stream.name, None)) is not None:
            hearing.release()

    def ended(self, name: str) -> None:
        """A stream was removed."""
        for key in [key for key in self._told if key[1] == name]:
            del self._told[key]
        if (hearing := self._hearings.pop(name, None)) is not None:
            hearing.release()

    def closed(self, conn: int, guid: str, *, ends: bool) -> None:
        """A mirror is gone; `ends`: it has said so."""
        for key in [key for key in self._told if key[0] == conn]:
            del self._told[key]
        for hearing in self._hearings.values():
            hearing.lost(guid, self._hub.loop.time(), ends=ends)
        self._hub.clock.arm()

    def heard(self, conn: int, word: Heard, name: str) -> None:
        """A mirror has written something."""
        told, hearing = self._told.get((conn, name)), self._hearings.get(name)
        if told is not None and hearing is not None and told.number == word.number:
            hearing.heard(told.guid, word.serial, all_=word.serial == told.shown)

    def refuse(self) -> None:
        """This node hands out no more: what waits can't be answered."""
        for hearing in self._hearings.values():
            hearing.refuse(Unsure("the mirror of this broker may hand it out now; it may be handed out again"))

    def expire(self, now: float) -> None:
        for hearing in self._hearings.values():
            hearing.expire(now)

    def deadline(self) -> float | None:
        due = (hearing.deadline() for hearing in self._hearings.values())
        return min((one for one in due if one is not None), default=None)

    # What is sent.

    def _noted(self, name: str, journal: Journal, entries: list[Entry]) -> "asyncio.Future[None] | None":
        serial = next(self._serials)
        for (conn, stream), told in self._told.items():
            if stream == name and told.shown:
                self._tell(conn, told, entries, serial, _place(journal), all_=False)
        hearing = self._hearings.get(name)
        if hearing is None:
            return None
        future = hearing.note(serial, self._hub.loop.time(), self._hub.loop.create_future)
        if future is not None:
            self._hub.clock.arm()
            self._hub.loop.call_soon(self._hub.flush)
        return future

    def _show(self, conn: int, told: _Told, journal: Journal, entries: list[Entry]) -> None:
        """All there is, when it is known; what follows goes behind it."""
        if self._told.get((conn, told.name)) is told:
            told.shown = next(self._serials)
            self._tell(conn, told, entries, told.shown, _place(journal), all_=True)
            self._hub.loop.call_soon(self._hub.flush)

    def _tell(
        self, conn: int, told: _Told, entries: Sequence[Entry], serial: int, stamp: Stamp | None, *, all_: bool
    ) -> None:
        parts = list(split(entries))
        for part in parts[:-1]:
            self._send(conn, Noted(told.number, all_ and part is parts[0], part, more=True))
        self._send(conn, Noted(told.number, all_ and len(parts) == 1, parts[-1], serial, stamp=stamp))


def _place(journal: Journal) -> Stamp | None:
    return None if journal.lineage is None else journal.lineage.place


def split(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Few enough entries at a time for a frame; at least one part, which may be empty."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        more = 512 + 20 * (len(entry.spans) if isinstance(entry, Done | Delivered | Redriven) else 0)
        if part and size + more > _ENTRIES:
            yield tuple(part)
            part, size = [], 0
        part.append(entry)
        size += more
    yield tuple(part)
