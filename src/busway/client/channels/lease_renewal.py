"""Lease renewal: tells the broker that a consumer is alive, so that the leases of the messages it holds do not end.

A driver. One frame at each third of the lease renews all messages of a channel: those that a handler or a program works on,
and those that wait here for one. The broker's answer has the lease, so a changed one is known with the next renewal, and how
many messages this consumer holds: while it holds none, nothing is sent. The client keeps only what `max_processing` needs:
since when each message is worked on. A message that is worked on for longer is no longer renewed.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias
from weakref import WeakMethod

import msgspec

from busway._core import Message
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.common.intervals import Intervals
from busway.errors import AckLate, BusError, Code

Places: TypeAlias = Iterable[tuple[tuple[str, str], list[tuple[int, int]]]]
"""Offsets, as (first, how many), by broker and stream."""

FRAME: Final = 0x33
_ENTRY: Final = struct.Struct("<QIB3xI")
_RENEW: Final = _ENTRY.pack(0, 0, 4, 0)
_LAPSE: Final = 5
_OFTEN: Final = 3
"""Renewals in the time of one lease."""
_LEAST: Final = 0.01
_MOST: Final = 10.0
"""Seconds between two renewals, at least and at most."""
_ENTRIES: Final = 3000

log = logging.getLogger("busway.client")


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Call a method unless its object is gone: the event loop must not keep a channel that the program has dropped."""
    reference = WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (bound := reference()) is not None:
            bound(*arguments)

    return call


class LeaseRenewal:
    """The renewals of one channel."""

    def __init__(
        self,
        core: Core,
        label: str,
        *,
        limit: float | None,
        joined: Callable[[], bool],
        waiting: Callable[[], Places],
        pending: Callable[[], int],
    ) -> None:
        self._core = core
        self._label = label
        self._limit = limit
        """Seconds that a message may be worked on; None: any time. With 0 nothing is renewed."""
        self._joined = joined
        self._waiting = waiting
        """The messages that were taken out of the inbox and wait for a consumer."""
        self._pending = pending
        """How many messages wait, in the inbox or outside."""
        self._id = 0
        self._lease: float | None = None
        """Seconds; 0: no end. None: the broker of the moment has not said it yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False
        self._stamp = 0
        """Milliseconds on the loop's clock, as of the last renewal."""
        self._taken: dict[str, Intervals] = {}
        """By broker: since when the messages that a program has taken are with it."""
        self.working: dict[Message, float] = {}
        """Since when handlers work on messages; one that was redelivered here may be among them twice."""
        self._lapsed: set[Message] = set()
        """Of those, the ones that are not renewed any more."""
        self._unsaid: list[tuple[str, list[tuple[int, int]], bool]] = []
        """Messages whose leases are to end, which the broker was not told yet: its guid, their runs, whether they are overdue."""

    @property
    def tracks(self) -> bool:
        """Whether taken() and settled() are to be called."""
        return bool(self._limit)

    def begin(self, number: int) -> None:
        """The channel has this number."""
        self._id = number

    def announced(self) -> None:
        """The consumer joins the channel over a new connection: the messages that it held before are no longer its own."""
        self._lease = None
        self._asking = False
        self._taken.clear()
        self._lapsed.clear()
        self._unsaid.clear()

    def joined(self) -> None:
        """The broker knows the consumer. The first messages may have come before its answer, and may be taken by now."""
        self.arrived()

    def arrived(self) -> None:
        """There are messages."""
        if self._timer is None and not self._asking and self._limit != 0 and self._joined():
            self._stamp = int(self._core.loop.time() * 1000)
            if self._lease is None:
                self._renew()
            else:
                self._timer = self._core.loop.call_later(self._period, _weak(self._tick))

    def stop(self) -> None:
        """The channel is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._limit = 0

    def taken(self, places: Places) -> None:
        """A program has these now."""
        for (broker, _), runs in places:
            since = self._taken.setdefault(broker, Intervals())
            for first, count in runs:
                since.put(first, first + count, self._stamp)

    def settled(self, broker: str, entries: Iterable[tuple[int, int, int]]) -> None:
        """The broker was told what became of these."""
        if (since := self._taken.get(broker)) is not None:
            for first, count, _ in entries:
                since.put(first, first + count, 0)

    def abandon(self, broker: str, runs: list[tuple[int, int]]) -> None:
        """The broker could not note what became of these: let their leases end, so that they are redelivered."""
        self._unsaid.append((broker, runs, False))

    def finished(self, message: Message) -> None:
        """A handler works on this no longer."""
        self.working.pop(message, None)
        self._lapsed.discard(message)

    # Inside.

    @property
    def _period(self) -> float:
        return max(min((self._lease or _MOST) / _OFTEN, _MOST), _LEAST)

    def _tick(self) -> None:
        self._timer = None
        if not self._joined():
            return  # joined() begins anew
        self._stamp = int(self._core.loop.time() * 1000)
        if self._limit:
            self.taken(self._waiting())
            self._check_limit(self._limit)
        unsaid, self._unsaid = self._unsaid, []
        for broker, runs, overdue in unsaid:
            for at in range(0, len(runs), _ENTRIES):
                self._lapse(broker, runs[at : at + _ENTRIES], overdue=overdue)
        self._renew()

    def _renew(self) -> None:
        core = self._core
        try:
            number = core.session.channel(FRAME, self._id, _RENEW)
        except BusError:
            return  # the connection is gone
        self._asking = True
        core.answer(number).add_done_callback(_weak(self._renewed))

    def _renewed(self, answer: "asyncio.Future[int]") -> None:
        self._asking = False
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or self._limit == 0:
            return
        if error is None:
            value = answer.result()
            self._lease = (value >> 32) / 1000
            if not value & 0xFFFF_FFFF and not self._pending():
                return  # arrived() goes on
        elif not self._joined():
            return
        elif isinstance(error, BusError) and error.code == Code.INVALID_SETTING:
            log.warning("channel %r: this broker can't renew leases; extend() them in time", self._label)
            self._limit = 0
            return
        elif isinstance(error, BusError) and error.code == Code.NO_CHANNEL:
            return
        self._timer = self._core.loop.call_later(self._period, _weak(self._tick))

    def _check_limit(self, limit: float) -> None:
        """Find the messages that are worked on for too long."""
        now = self._core.loop.time()
        over: dict[str, list[tuple[int, int]]] = {}
        for message, since in self.working.items():
            if now - since > limit and message not in self._lapsed:
                self._lapsed.add(message)
                over.setdefault(message.broker or "", []).append((message.offset or 0, 1))
        # A message that waited may have been taken right after it was looked at last.
        oldest = int((now - limit - self._period) * 1000)
        for broker, taken in self._taken.items():
            old = [(start, end - start) for start, end, stamp in taken if stamp < oldest]
            for start, count in old:
                taken.put(start, start + count, 0)
            if old:
                over.setdefault(broker, []).extend(old)
        self._unsaid += [(broker, runs, True) for broker, runs in over.items()]

    def _lapse(self, broker: str, runs: list[tuple[int, int]], *, overdue: bool) -> None:
        core = self._core
        whose = b"" if broker == core.broker else bytes.fromhex(broker)
        entries = b"".join(_ENTRY.pack(first, count, _LAPSE, 0) for first, count in runs)
        try:
            number = core.session.channel(FRAME, self._id, whose + entries)
        except BusError:
            return  # the connection is gone
        core.answer(number).add_done_callback(lambda answer: self._told(broker, runs, answer, overdue=overdue))

    def _told(self, broker: str, runs: list[tuple[int, int]], answer: "asyncio.Future[Any]", *, overdue: bool) -> None:
        """The consumer may have settled some of these messages, or lost them to another consumer."""
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled():
            return
        if error is not None and not isinstance(error, AckLate):
            if self._joined():  # the next tick tries it again
                self._unsaid.append((broker, runs, overdue))
            return
        if not overdue:
            return
        left = [] if error is None else msgspec.json.decode(str(error), type=list[tuple[int, int]])
        held = {offset for first, count in runs for offset in range(first, first + count)}
        held.difference_update(offset for first, count in left for offset in range(first, first + count))
        if not held:
            return
        log.warning(
            "channel %r: %d message(s), from offset %d on, are worked on for longer than max_processing=%g s: "
            "their leases are not extended any more, and they will be redelivered",
            self._label,
            len(held),
            min(held),
            self._limit,
        )
        self._core.events.emit(Event(kind="overdue", topic=self._label, count=len(held)))
