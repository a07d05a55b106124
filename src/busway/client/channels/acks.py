"""What became of the messages of a channel: gathered for one turn of the loop, sent in one frame, answered together.

An acknowledgement goes out whether it is awaited or not. Awaited, it returns when the broker has noted it as safely as the
stream promises, or raises: AckLate if the message had gone to somebody else.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.errors import AckLate, BusError

Run: TypeAlias = tuple[int, int]
"""The first of some offsets, and how many."""
Runs: TypeAlias = list[tuple[tuple[str, str], list[Run]]]
"""Offsets by the broker and the stream that they belong to."""

ACK: Final = 0
NACK: Final = 1
EXTEND: Final = 2
RELEASE: Final = 3

FRAME: Final = 0x33
_NACK: Final = 0x34
_ENTRY: Final = struct.Struct("<QIB3xI")
_MOST: Final = 3000
"""Entries of one frame, so that it is within the limits of a broker that allows little."""
_LONGEST: Final = (1 << 32) - 1
_QUIET: Final = 10.0
"""Seconds between two log lines about late acknowledgements of a channel."""

log = logging.getLogger("busway.client")


class Acknowledged(NamedTuple):
    """What a NACK says of its messages."""

    delay: int | None
    reject: bool
    failure: tuple[tuple[str, str], ...]


class AckOutcome:
    """What ack() and nack() return: await it to know that it is stored."""

    __slots__ = ("_parts",)

    def __init__(self, parts: "list[tuple[_Batch, list[Run]]]") -> None:
        self._parts = parts

    def __await__(self) -> Generator[Any, None, None]:
        if len(self._parts) == 1:
            batch, runs = self._parts[0]
            return batch.wait(runs).__await__()
        return self._wait().__await__()

    async def _wait(self) -> None:
        for batch, runs in self._parts:
            await batch.wait(runs)


class _Batch:
    """One frame: of messages that one broker has stored."""

    __slots__ = ("_heard", "answer", "broker", "entries", "said")

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: str, said: "Acknowledged | None" = None) -> None:
        self.broker = broker
        self.said = said
        """What a NACK says of all of them; None: it is an ACK."""
        self.entries: list[tuple[int, int, int]] = []
        self.answer: asyncio.Future[list[Run]] = loop.create_future()
        self._heard: list[list[Run]] = []
        """Those whose outcome somebody waits for."""

    def add(self, what: int, run: Run) -> None:
        (first, many), entries = run, self.entries
        if entries:
            start, count, last = entries[-1]
            if start + count == first and last == what:
                entries[-1] = start, count + many, what
                return
        entries.append((first, many, what))

    def pack(self, connected: str) -> tuple[int, bytes]:
        """Its frame for the broker of this guid: the kind, and what follows the header."""
        # The server that it is connected to may have got them from another one.
        far = self.broker if self.broker != connected else ""
        if self.said is None:
            rest = b"".join(_ENTRY.pack(start, count, what, 0) for start, count, what in self.entries)
            return FRAME, bytes.fromhex(far) + rest
        delay, reject, failure = self.said
        spans = [(start, count) for start, count, _ in self.entries]
        said = {"spans": spans, "delay": delay, "reject": reject, "failure": dict(failure), "broker": far}
        return _NACK, msgspec.msgpack.encode(said)

    async def wait(self, runs: list[Run]) -> None:
        self._heard.append(runs)
        for start, count in await asyncio.shield(self.answer):
            for first, many in runs:
                if start < first + many and first < start + count:
                    raise AckLate(f"offset {max(start, first)}: too late, it is done already or was handed out again")

    def told(self, left: list[Run]) -> None:
        """The broker's answer."""
        self.answer.set_result(left)

    def failed(self, error: BusError) -> BusError | None:
        self.answer.set_exception(error)
        self.answer.exception()
        heard = sum(many for runs in self._heard for _, many in runs)
        return error if heard < sum(entry[1] for entry in self.entries) else None


class Acks:
    """The acknowledgements of one channel."""

    def __init__(
        self,
        core: Core,
        label: str,
        usable: Callable[[], None],
        joined: Callable[[], bool],
        done: Callable[[str, list[Run], list[Run]], None],
        failed: Callable[[str, list[Run]], None],
    ) -> None:
        self._core = core
        self._label = label
        self._usable = usable
        self._joined = joined
        self._done = done
        """Called with what was acknowledged of a broker, and what of that was too late."""
        self._failed = failed
        """Called with the messages of a broker of which it could not note what became of them."""
        self.sent_to: Callable[[str, list[tuple[int, int, int]]], None] | None = None
        """Called with the broker and the entries of each frame that was sent."""
        self._late = 0
        """Late acknowledgements that were not logged yet."""
        self._late_timer: asyncio.TimerHandle | None = None
        self._id = 0
        self._batches: dict[tuple[str, Acknowledged | None], _Batch] = {}
        self._under_way: set[asyncio.Future[Any]] = set()

    def begin(self, number: int) -> None:
        """The channel has this number."""
        self._id = number

    def add(self, what: int, places: Runs) -> AckOutcome:
        """Send this at the end of the turn."""
        return self._add(what, places, None)

    def fail(self, places: Runs, delay: float | None, failure: dict[str, Any], *, reject: bool = False) -> AckOutcome:
        """The same of messages that failed: redelivered after a delay or the channel's backoff, or rejected."""
        milliseconds = None if delay is None else min(int(delay * 1000 + 0.999), _LONGEST)
        return self._add(NACK, places, Acknowledged(milliseconds, reject, tuple(failure.items())))

    def _add(self, what: int, places: Runs, said: "Acknowledged | None") -> AckOutcome:
        self._usable()
        parts = []
        for (broker, _), runs in places:
            key = broker, said
            batch = self._batches.get(key)
            if batch is None or len(batch.entries) >= _MOST:
                if batch is not None:
                    self.send()
                if not self._batches:
                    self._core.loop.call_soon(self.send)
                batch = self._batches[key] = _Batch(self._core.loop, broker, said)
            for run in runs:
                batch.add(what, run)
            parts.append((batch, runs))
        return AckOutcome(parts)

    def send(self) -> None:
        """Send what was gathered."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._send(batch)

    def _send(self, batch: _Batch) -> None:
        core = self._core
        try:
            if not self._joined():
                raise core.unavailable_error()
            kind, rest = batch.pack(core.broker)
            number = core.session.channel(kind, self._id, rest)
        except BusError as error:
            self._tell(batch.failed(error))
            return
        if self.sent_to is not None:
            self.sent_to(batch.broker, [entry for entry in batch.entries if entry[2] != EXTEND])
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
        if isinstance(error, BusError) and not isinstance(error, AckLate):
            self._failed(batch.broker, [(first, many) for first, many, what in batch.entries if what != EXTEND])
            self._tell(batch.failed(error))
            return
        left = [] if error is None else msgspec.json.decode(str(error), type=list[Run])
        if not answer.cancelled():
            self._done(batch.broker, [(first, many) for first, many, what in batch.entries if what == ACK], left)
        batch.told(left)
        if left:
            self._tell_late(left)

    def _tell_late(self, left: list[Run]) -> None:
        """The event for each answer; a line in the log at once, and then one in ten seconds."""
        count, first = sum(many for _, many in left), min(left)[0]
        error = AckLate(f"{count} acknowledgements came too late, from offset {first} on")
        self._core.events.emit(Event(kind="late", topic=self._label, count=count, error=error))
        self._late += count
        if self._late_timer is None:
            self._log_late(first)

    def _log_late(self, first: int | None = None) -> None:
        self._late_timer = None
        if not self._late:
            return
        where = "" if first is None else f", from offset {first} on"
        log.warning(
            "channel %r: late acknowledgements of %d message(s)%s: "
            "they were done already, or their lease had ended and they were redelivered",
            self._label,
            self._late,
            where,
            extra={"channel": self._label, "late": self._late},
        )
        self._late = 0
        self._late_timer = self._core.loop.call_later(_QUIET, self._log_late)

    def _tell(self, error: BusError | None) -> None:
        if error is not None:
            self._core.events.emit(Event(kind="rejected", topic=self._label, error=error))
