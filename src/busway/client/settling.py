"""What became of the messages of a channel: gathered for one turn of the loop, sent in one frame, answered together.

An acknowledgement goes out whether it is awaited or not. Awaited, it returns when the broker has noted it as safely as the
stream promises, or raises: AckLate if the message had gone to somebody else.
"""

import asyncio
import struct
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

import msgspec

from busway.client.core import Core
from busway.client.events import Event
from busway.errors import AckLate, BusError

Run: TypeAlias = tuple[int, int]
"""The first of some offsets, and how many."""

ACK: Final = 0
NACK: Final = 1
EXTEND: Final = 2
RELEASE: Final = 3

FRAME: Final = 0x33
_ENTRY: Final = struct.Struct("<QIB3xI")
_MOST: Final = 3000
"""Entries of one frame, so that it is within the limits of a broker that allows little."""
_LONGEST: Final = (1 << 32) - 1


class Settled:
    """What ack() and nack() return: await it to know that it is stored."""

    __slots__ = ("_batch", "_runs")

    def __init__(self, batch: "_Batch", runs: list[Run]) -> None:
        self._batch = batch
        self._runs = runs

    def __await__(self) -> Generator[Any, None, None]:
        return self._batch.wait(self._runs).__await__()


class _Batch:
    """One frame."""

    __slots__ = ("_heard", "answer", "entries")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.entries: list[tuple[int, int, int, int]] = []
        self.answer: asyncio.Future[list[Run]] = loop.create_future()
        self._heard: list[list[Run]] = []
        """Those whose outcome somebody waits for."""

    def add(self, what: int, run: Run, delay: int) -> None:
        (first, many), entries = run, self.entries
        if entries:
            start, count, last, before = entries[-1]
            if start + count == first and last == what and before == delay:
                entries[-1] = start, count + many, what, delay
                return
        entries.append((first, many, what, delay))

    async def wait(self, runs: list[Run]) -> None:
        self._heard.append(runs)
        for start, count in await asyncio.shield(self.answer):
            for first, many in runs:
                if start < first + many and first < start + count:
                    raise AckLate(f"offset {max(start, first)}: too late, it is done already or was handed out again")

    def told(self, left: list[Run]) -> BusError | None:
        """The broker's answer; the error that nobody else hears of."""
        self.answer.set_result(left)
        if not left:
            return None
        heard = {offset for runs in self._heard for first, many in runs for offset in range(first, first + many)}
        late = [offset for start, count in left for offset in range(start, start + count) if offset not in heard]
        if not late:
            return None
        return AckLate(f"{len(late)} acknowledgements came too late, from offset {late[0]} on")

    def failed(self, error: BusError) -> BusError | None:
        self.answer.set_exception(error)
        self.answer.exception()
        heard = sum(many for runs in self._heard for _, many in runs)
        return error if heard < sum(entry[1] for entry in self.entries) else None


class Settling:
    """The acknowledgements of one channel."""

    def __init__(self, core: Core, label: str, usable: Callable[[], None], joined: Callable[[], bool]) -> None:
        self._core = core
        self._label = label
        self._usable = usable
        self._joined = joined
        self._id = 0
        self._batch: _Batch | None = None
        self._under_way: set[asyncio.Future[Any]] = set()

    def begin(self, number: int) -> None:
        """The channel has this number."""
        self._id = number

    def add(self, what: int, runs: list[Run], delay: float = 0.0) -> Settled:
        """Send this at the end of the turn."""
        self._usable()
        batch = self._batch
        if batch is None or len(batch.entries) >= _MOST:
            self.send()
            batch = self._batch = _Batch(self._core.loop)
            self._core.loop.call_soon(self.send)
        milliseconds = min(int(delay * 1000 + 0.999), _LONGEST) if delay else 0
        for run in runs:
            batch.add(what, run, milliseconds)
        return Settled(batch, runs)

    def send(self) -> None:
        """Send what was gathered."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        core = self._core
        try:
            if not self._joined():
                raise core.why_not()
            rest = b"".join(_ENTRY.pack(start, count, what, delay) for start, count, what, delay in batch.entries)
            number = core.session.channel(FRAME, self._id, rest)
        except BusError as error:
            self._tell(batch.failed(error))
            return
        answer = core.answer(number)
        self._under_way.add(answer)
        answer.add_done_callback(lambda answer: self._answered(batch, answer))

    async def sent(self) -> None:
        """Return when everything has been answered."""
        self.send()
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    def _answered(self, batch: _Batch, answer: "asyncio.Future[Any]") -> None:
        self._under_way.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, AckLate):
            self._tell(batch.told(msgspec.json.decode(error.reason, type=list[Run])))
        elif isinstance(error, BusError):
            self._tell(batch.failed(error))
        else:
            batch.told([])

    def _tell(self, error: BusError | None) -> None:
        if error is not None:
            self._core.events.tell(Event(kind="rejected", topic=self._label, error=error))
