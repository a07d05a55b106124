"""What became of the messages of a channel: gathered for one turn of the loop, sent in one frame, answered together.

An acknowledgement goes out whether it is awaited or not. Awaited, it returns when the broker has noted it as safely as the
stream promises, or raises: AckLate if the message had gone to somebody else.
"""

import asyncio
import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from busway.client.core import Core
from busway.client.events import Event
from busway.errors import AckLate, BusError

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

    __slots__ = ("_batch", "_first", "_offsets")

    def __init__(self, batch: "_Batch", first: int, offsets: Iterable[int] = ()) -> None:
        self._batch = batch
        self._first = first
        self._offsets = offsets

    def __await__(self) -> Generator[Any, None, None]:
        return self._batch.wait((self._first, *self._offsets)).__await__()


class _Batch:
    """One frame."""

    __slots__ = ("_heard", "answer", "entries")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.entries: list[tuple[int, int, int, int]] = []
        self.answer: asyncio.Future[list[tuple[int, int]]] = loop.create_future()
        self._heard: list[Sequence[int]] = []
        """Offsets whose outcome somebody waits for."""

    def add(self, what: int, offset: int, delay: int) -> None:
        entries = self.entries
        if entries:
            start, count, last, before = entries[-1]
            if start + count == offset and (last, before) == (what, delay):
                entries[-1] = start, count + 1, what, delay
                return
        entries.append((offset, 1, what, delay))

    async def wait(self, offsets: Sequence[int]) -> None:
        self._heard.append(offsets)
        left = await asyncio.shield(self.answer)
        for offset in offsets if left else ():
            if any(start <= offset < start + count for start, count in left):
                raise AckLate(f"offset {offset}: too late, it is done already or was handed out again")

    def told(self, left: list[tuple[int, int]]) -> BusError | None:
        """The broker's answer; the error that nobody else hears of."""
        self.answer.set_result(left)
        if not left:
            return None
        heard = set(chain.from_iterable(self._heard))
        late = [offset for start, count in left for offset in range(start, start + count) if offset not in heard]
        if not late:
            return None
        return AckLate(f"{len(late)} acknowledgements came too late, from offset {late[0]} on")

    def failed(self, error: BusError) -> BusError | None:
        self.answer.set_exception(error)
        self.answer.exception()
        heard = sum(map(len, self._heard))
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

    def add(self, what: int, offsets: Iterable[int], delay: float = 0.0) -> Settled:
        """Send this at the end of the turn."""
        self._usable()
        batch = self._batch
        if batch is None or len(batch.entries) >= _MOST:
            self.send()
            batch = self._batch = _Batch(self._core.loop)
            self._core.loop.call_soon(self.send)
        milliseconds = min(int(delay * 1000 + 0.999), _LONGEST)
        first, *others = offsets
        batch.add(what, first, milliseconds)
        for offset in others:
            batch.add(what, offset, milliseconds)
        return Settled(batch, first, others)

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
            self._tell(batch.told(msgspec.json.decode(error.reason, type=list[tuple[int, int]])))
        elif isinstance(error, BusError):
            self._tell(batch.failed(error))
        else:
            batch.told([])

    def _tell(self, error: BusError | None) -> None:
        if error is not None:
            self._core.events.tell(Event(kind="rejected", topic=self._label, error=error))
