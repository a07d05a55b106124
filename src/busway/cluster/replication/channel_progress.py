"""Sends the journal entries of this node's channels to its mirrors, and delays acknowledgements until they are written.

Acknowledgements wait in streams with safety=mirrored. The primary driver owns it; `progress_state` has the rules.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import Delivered, Done, Entry, Redriven, Stamp
from busway.broker.streams.stream import Stream
from busway.cluster.replication.messages import Heard, Noted, Word
from busway.cluster.replication.progress_state import ProgressState
from busway.errors import StoreFailed
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime

_ENTRIES: Final = 256 * KiB
"""Approximate bytes of entries in one message."""


class Unsure(StoreFailed):
    """An acknowledgement is recorded at this node, but it is unknown whether the mirror has it."""


@dataclass(slots=True)
class _Transfer:
    """The channel progress of one stream, as sent to one mirror."""

    guid: str
    name: str
    number: int
    snapshot: int = 0
    """The serial of the first full snapshot; 0: not sent yet. Entries are sent after the snapshot only."""


class ChannelProgress:
    """Replication of the channel progress of one broker."""

    def __init__(
        self, runtime: "Runtime", channels: "Callable[[], Channels]", send: Callable[[int, Word], None], wait: float
    ) -> None:
        """`wait`: the seconds that an acknowledgement waits for a mirror."""
        self._runtime = runtime
        self._channels = channels
        self._send = send
        self._wait = wait
        self._serials = count(1)
        self._transfers: dict[tuple[int, str], _Transfer] = {}
        """Transfers, by link and stream."""
        self._states: dict[str, ProgressState] = {}

    @property
    def alone(self) -> int:
        """How often acknowledgements stopped waiting for a mirror."""
        return sum(state.alone for state in self._states.values())

    def begin(self, conn: int, guid: str, stream: Stream, number: int) -> None:
        """Start to send the channel progress of a stream. `number` identifies the stream at the mirror."""
        if isinstance(journal := self._channels().journal_of(stream), ProgressLog):
            transfer = self._transfers[conn, stream.name] = _Transfer(guid, stream.name, number)
            if stream.config.safety == "mirrored":
                self._states.setdefault(stream.name, ProgressState(self._wait))
            journal.watcher = partial(self._recorded, stream.name, journal)
            journal.look(partial(self._send_snapshot, conn, transfer, journal))

    def changed(self, stream: Stream) -> None:
        """The settings of a stream were changed."""
        if stream.config.safety != "mirrored" and (state := self._states.pop(stream.name, None)) is not None:
            state.release()

    def ended(self, name: str) -> None:
        """A stream was removed."""
        for key in [key for key in self._transfers if key[1] == name]:
            del self._transfers[key]
        if (state := self._states.pop(name, None)) is not None:
            state.release()

    def closed(self, conn: int, guid: str, *, ends: bool) -> None:
        """The link to a mirror has ended. `ends`: the mirror announced that it stops."""
        for key in [key for key in self._transfers if key[0] == conn]:
            del self._transfers[key]
        self.lost(guid, ends=ends)

    def lost(self, guid: str, *, ends: bool) -> None:
        """A mirror is not linked any more. `ends`: it can't be promoted any more, so nothing waits for it."""
        for state in self._states.values():
            state.lost(guid, self._runtime.loop.time(), ends=ends)
        self._runtime.arm()

    def heard(self, conn: int, word: Heard, name: str) -> None:
        """A mirror has written entries."""
        transfer, state = self._transfers.get((conn, name)), self._states.get(name)
        if transfer is not None and state is not None and transfer.number == word.number:
            state.heard(transfer.guid, word.serial, all_=word.serial == transfer.snapshot)

    def refuse(self) -> None:
        """This node stops delivering, so refuse all acknowledgements that wait."""
        for state in self._states.values():
            state.refuse(Unsure("another node owns the channels of this broker now; the message may be redelivered"))

    def expire(self, now: float) -> None:
        for state in self._states.values():
            state.expire(now)

    def deadline(self) -> float | None:
        due = (state.deadline() for state in self._states.values())
        return min((at for at in due if at is not None), default=None)

    # Sending.

    def _recorded(self, name: str, journal: ProgressLog, entries: list[Entry]) -> "asyncio.Future[None] | None":
        serial = next(self._serials)
        for (conn, stream), transfer in self._transfers.items():
            if stream == name and transfer.snapshot:
                self._send_entries(conn, transfer, entries, serial, _position(journal), snapshot=False)
        state = self._states.get(name)
        if state is None:
            return None
        future = state.note(serial, self._runtime.loop.time(), self._runtime.loop.create_future)
        if future is not None:
            self._runtime.arm()
            self._runtime.loop.call_soon(self._runtime.flush)
        return future

    def _send_snapshot(self, conn: int, transfer: _Transfer, journal: ProgressLog, entries: list[Entry]) -> None:
        """Send the full snapshot. Later entries follow it."""
        if self._transfers.get((conn, transfer.name)) is transfer:
            transfer.snapshot = next(self._serials)
            self._send_entries(conn, transfer, entries, transfer.snapshot, _position(journal), snapshot=True)
            self._runtime.loop.call_soon(self._runtime.flush)

    def _send_entries(
        self,
        conn: int,
        transfer: _Transfer,
        entries: Sequence[Entry],
        serial: int,
        stamp: Stamp | None,
        *,
        snapshot: bool,
    ) -> None:
        parts = list(split(entries))
        for part in parts[:-1]:
            self._send(conn, Noted(transfer.number, snapshot and part is parts[0], part, more=True))
        self._send(conn, Noted(transfer.number, snapshot and len(parts) == 1, parts[-1], serial, stamp=stamp))


def _position(journal: ProgressLog) -> Stamp | None:
    return None if journal.lineage is None else journal.lineage.place


def split(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Split entries into parts that fit into a frame. There is at least one part, which may be empty."""
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
