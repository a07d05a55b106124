"""Acknowledgements of one channel: acks, nacks and extensions, sent in one frame for each turn of the loop.

Channel calls this. An acknowledgement is sent whether it is awaited or not. An awaited one returns when the broker has
stored it as safely as the stream promises. It raises AckLate if the message had been redelivered.
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
"""Successive offsets: the first one, and how many."""
Runs: TypeAlias = list[tuple[tuple[str, str], list[Run]]]
"""Offsets by broker and stream."""

ACK: Final = 0
NACK: Final = 1
EXTEND: Final = 2
RELEASE: Final = 3
RETURN: Final = 6

FRAME: Final = 0x33
_NACK: Final = 0x34
_ENTRY: Final = struct.Struct("<QIB3xI")
_MOST: Final = 3000
"""Entries of one frame, which keep it within the frame limit of any broker."""
_LONGEST: Final = (1 << 32) - 1
_QUIET: Final = 10.0
"""Seconds between two log lines about late acknowledgements of a channel."""

log = logging.getLogger("busway.client")


class Nack(NamedTuple):
    """The parameters of a NACK frame, the same for all its messages."""

    delay: int | None
    reject: bool
    failure: tuple[tuple[str, str], ...]


class AckOutcome:
    """The result of ack(), nack() and extend(). Await it to know that the broker has stored it."""

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
    """One ACK or NACK frame, for messages that one broker has stored."""

    __slots__ = ("_awaited", "answer", "broker", "entries", "nack")

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: str, nack: Nack | None = None) -> None:
        self.broker = broker
        self.nack = nack
        """The parameters of a NACK; None: this is an ACK."""
        self.entries: list[tuple[int, int, int]] = []
        self.answer: asyncio.Future[list[Run]] = loop.create_future()
        self._awaited: list[list[Run]] = []
        """The messages whose outcome callers wait for."""

    def add(self, action: int, run: Run) -> None:
        (first, many), entries = run, self.entries
        if entries:
            start, count, last = entries[-1]
            if start + count == first and last == action:
                entries[-1] = start, count + many, action
                return
        entries.append((first, many, action))

    def pack(self, connected: str) -> tuple[int, bytes]:
        """The kind and the body of the frame, for a client that is connected to the broker with this guid."""
        # The broker may have delivered messages of another broker.
        remote = self.broker if self.broker != connected else ""
        if self.nack is None:
            rest = b"".join(_ENTRY.pack(start, count, action, 0) for start, count, action in self.entries)
            return FRAME, bytes.fromhex(remote) + rest
        delay, reject, failure = self.nack
        spans = [(start, count) for start, count, _ in self.entries]
        body = {"spans": spans, "delay": delay, "reject": reject, "failure": dict(failure), "broker": remote}
        return _NACK, msgspec.msgpack.encode(body)

    async def wait(self, runs: list[Run]) -> None:
        self._awaited.append(runs)
        for start, count in await asyncio.shield(self.answer):
            for first, many in runs:
                if start < first + many and first < start + count:
                    raise AckLate(
                        f"offset {max(start, first)}: acknowledged too late; "
                        "it was already acknowledged or redelivered to another consumer"
                    )

    def answered(self, left: list[Run]) -> None:
        """Complete with the broker's answer: the messages that were acknowledged too late."""
        self.answer.set_result(left)

    def failed(self, error: BusError) -> BusError | None:
        """Complete with an error. Returns it if callers do not wait for all messages, so that it has to be reported."""
        self.answer.set_exception(error)
        self.answer.exception()
        awaited = sum(many for runs in self._awaited for _, many in runs)
        return error if awaited < sum(entry[1] for entry in self.entries) else None


class Acks:
    """The acknowledgements of one channel."""

    def __init__(
        self,
        core: Core,
        label: str,
        usable: Callable[[], None],
        joined: Callable[[], bool],
        on_acked: Callable[[str, list[Run], list[Run]], None],
        on_failed: Callable[[str, list[Run]], None],
        on_sent: Callable[[str, list[tuple[int, int, int]]], None] | None,
    ) -> None:
        self._core = core
        self._label = label
        self._usable = usable
        self._joined = joined
        self._on_acked = on_acked
        """Called with a broker, its acknowledged messages, and those among them that were too late."""
        self._on_failed = on_failed
        """Called with a broker and the messages whose acknowledgement it could not store."""
        self._on_sent = on_sent
        """Called with the broker and the entries of each frame that was sent."""
        self._late = 0
        """Late acknowledgements that are not logged yet."""
        self._late_timer: asyncio.TimerHandle | None = None
        self._id = 0
        self._batches: dict[tuple[str, Nack | None], _Batch] = {}
        self._in_flight: set[asyncio.Future[Any]] = set()

    def begin(self, number: int) -> None:
        """Use this id of the channel in all frames."""
        self._id = number

    def add(self, action: int, places: Runs) -> AckOutcome:
        """Send this action at the end of the loop's turn."""
        return self._add(action, places, None)

    def fail(self, places: Runs, delay: float | None, failure: dict[str, Any], *, reject: bool = False) -> AckOutcome:
        """Send a NACK at the end of the turn: redeliver after the delay or the channel's backoff, or reject."""
        milliseconds = None if delay is None else min(int(delay * 1000 + 0.999), _LONGEST)
        return self._add(NACK, places, Nack(milliseconds, reject, tuple(failure.items())))

    def _add(self, action: int, places: Runs, nack: Nack | None) -> AckOutcome:
        self._usable()
        parts = []
        for (broker, _), runs in places:
            key = broker, nack
            batch = self._batches.get(key)
            if batch is None or len(batch.entries) >= _MOST:
                if batch is not None:
                    self.send()
                if not self._batches:
                    self._core.loop.call_soon(self.send)
                batch = self._batches[key] = _Batch(self._core.loop, broker, nack)
            for run in runs:
                batch.add(action, run)
            parts.append((batch, runs))
        return AckOutcome(parts)

    def send(self) -> None:
        """Send the collected acknowledgements."""
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
            self._report(batch.failed(error))
            return
        if self._on_sent is not None:
            self._on_sent(batch.broker, [entry for entry in batch.entries if entry[2] != EXTEND])
        answer = core.answer(number)
        self._in_flight.add(answer)
        answer.add_done_callback(lambda answer: self._answered(batch, answer))

    async def flush(self) -> None:
        """Send the collected acknowledgements, and wait until the broker has answered all."""
        self.send()
        if self._in_flight:
            await asyncio.wait(list(self._in_flight))

    def _answered(self, batch: _Batch, answer: "asyncio.Future[Any]") -> None:
        self._in_flight.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, BusError) and not isinstance(error, AckLate):
            runs = [(first, many) for first, many, action in batch.entries if action != EXTEND]
            self._on_failed(batch.broker, runs)
            self._report(batch.failed(error))
            return
        left = [] if error is None else msgspec.json.decode(str(error), type=list[Run])
        if not answer.cancelled():
            runs = [(first, many) for first, many, action in batch.entries if action == ACK]
            self._on_acked(batch.broker, runs, left)
        batch.answered(left)
        if left:
            self._report_late(left)

    def _report_late(self, left: list[Run]) -> None:
        """Emit an event for each answer, and write a log line at once, then at most every ten seconds."""
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
            "they were already acknowledged, or their lease had ended and they were redelivered",
            self._label,
            self._late,
            where,
            extra={"channel": self._label, "late": self._late},
        )
        self._late = 0
        self._late_timer = self._core.loop.call_later(_QUIET, self._log_late)

    def _report(self, error: BusError | None) -> None:
        if error is not None:
            self._core.events.emit(Event(kind="rejected", topic=self._label, error=error))
