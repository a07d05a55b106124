"""Lease renewal of one channel: renews the leases of the messages that its consumer holds.

Channel owns it. One frame at each third of the lease renews all messages of the consumer. The broker's answer has the
lease, so a changed lease is known with the next renewal, and the number of messages that the consumer holds. While it
holds none, nothing is sent. The client records only since when each message is in work: after `max_processing` its
lease is no longer renewed.
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
"""Offsets as (first, how many), by broker and stream."""

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
    """A call of a method through a weak reference, so that the event loop does not keep a dropped channel alive."""
    reference = WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (bound := reference()) is not None:
            bound(*arguments)

    return call


class LeaseRenewal:
    """Renews the leases of one channel's messages."""

    def __init__(
        self,
        core: Core,
        label: str,
        *,
        limit: float | None,
        joined: Callable[[], bool],
        waiting: Callable[[], Places],
        pending: Callable[[], int],
        taking: Callable[[], bool],
        handlers: int,
        received: Callable[[], int],
        on_stalled: Callable[[], None],
    ) -> None:
        self._core = core
        self._label = label
        self._limit = limit
        """Seconds that a message may be in work; None: no limit, 0: nothing is renewed."""
        self._joined = joined
        self._waiting = waiting
        """Returns the messages that were taken out of the inbox and wait for a consumer."""
        self._pending = pending
        """Returns how many messages wait, in the inbox or outside of it."""
        self._taking = taking
        """Returns whether a take waits for more messages."""
        self._handlers = handlers
        """The number of messages that handlers work on at a time; 0: the program takes the messages itself."""
        self._received = received
        """Returns how many messages have arrived in all."""
        self._on_stalled = on_stalled
        """Called at each renewal while the consumer is stalled."""
        self.stalled = False
        """True if no handler can take a message, for all work for too long, or if the program takes none.

        The channel sets it to False when a message is asked for.
        """
        self._progress: tuple[float, int] = (0.0, 0)
        """When the program last took or acknowledged a message, and how many it had taken by then."""
        self._id = 0
        self._lease: float | None = None
        """Seconds; 0: no end, None: the current broker has not sent it yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._renewing = False
        self._stamp = 0
        """The time of the last renewal, in milliseconds of the loop's clock."""
        self._in_work: dict[str, Intervals] = {}
        """By broker: since when the program works on the messages that it has taken."""
        self.working: dict[Message, float] = {}
        """Since when handlers work on messages. A redelivered message may be among them twice."""
        self._lapsed: set[Message] = set()
        """The messages of handlers that are no longer renewed."""
        self._lapses: list[tuple[str, list[tuple[int, int]], bool]] = []
        """Messages whose leases shall end, to be sent: the broker's guid, their runs, and whether they are overdue."""

    @property
    def tracks(self) -> bool:
        """Whether the channel has to call taken() and acknowledged()."""
        return bool(self._limit)

    def begin(self, number: int) -> None:
        """Use this id of the channel in all frames."""
        self._id = number

    def announced(self) -> None:
        """Forget all messages: the consumer joins over a new connection and does not hold them any more."""
        self._lease = None
        self._renewing = False
        self.stalled = False
        self._in_work.clear()
        self._lapsed.clear()
        self._lapses.clear()

    def joined(self) -> None:
        """Start, after the broker's answer. The first messages may have arrived before it, and may be taken by now."""
        self.arrived()

    def arrived(self) -> None:
        """Start renewing, for messages have arrived."""
        if self._timer is None and not self._renewing and self._limit != 0 and self._joined():
            self._stamp = int(self._core.loop.time() * 1000)
            self._record_progress()
            if self._lease is None:
                self._renew()
            else:
                self._timer = self._core.loop.call_later(self._period, _weak(self._tick))

    def stop(self) -> None:
        """Renew nothing any more: the channel is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._limit = 0

    def taken(self, places: Places) -> None:
        """Record that the program works on these messages from now on."""
        for (broker, _), runs in places:
            since = self._in_work.setdefault(broker, Intervals())
            for first, count in runs:
                since.put(first, first + count, self._stamp)

    def acknowledged(self, broker: str, entries: Iterable[tuple[int, int, int]]) -> None:
        """Record that the program does not work on these messages any more: their acknowledgement was sent."""
        self._record_progress()
        if (since := self._in_work.get(broker)) is not None:
            for first, count, _ in entries:
                since.put(first, first + count, 0)

    def abandon(self, broker: str, runs: list[tuple[int, int]]) -> None:
        """Let the leases of these messages end, so that the broker, which could not store their acks, redelivers them."""
        self._lapses.append((broker, runs, False))

    def finished(self, message: Message) -> None:
        """Record that a handler has finished with this message."""
        self.working.pop(message, None)
        self._lapsed.discard(message)

    # Inside.

    @property
    def _period(self) -> float:
        return max(min((self._lease or _MOST) / _OFTEN, _MOST), _LEAST)

    def _tick(self) -> None:
        self._timer = None
        if not self._joined():
            return  # joined() starts again
        self._stamp = int(self._core.loop.time() * 1000)
        if self._limit:
            self.taken(self._waiting())
            self._check_limit(self._limit)
            self._check_stalled(self._limit)
        lapses, self._lapses = self._lapses, []
        for broker, runs, overdue in lapses:
            for at in range(0, len(runs), _ENTRIES):
                self._lapse(broker, runs[at : at + _ENTRIES], overdue=overdue)
        self._renew()

    def _renew(self) -> None:
        core = self._core
        try:
            number = core.session.channel(FRAME, self._id, _RENEW)
        except BusError:
            return  # the connection is gone
        self._renewing = True
        core.answer(number).add_done_callback(_weak(self._renewed))

    def _renewed(self, answer: "asyncio.Future[int]") -> None:
        self._renewing = False
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or self._limit == 0:
            return
        if error is None:
            value = answer.result()
            self._lease = (value >> 32) / 1000
            if not value & 0xFFFF_FFFF and not self._pending():
                return  # arrived() starts again
        elif not self._joined():
            return
        elif isinstance(error, BusError) and error.code == Code.INVALID_SETTING:
            log.warning("channel %r: this broker can't renew leases; call extend() before they end", self._label)
            self._limit = 0
            return
        elif isinstance(error, BusError) and error.code == Code.NO_CHANNEL:
            return
        self._timer = self._core.loop.call_later(self._period, _weak(self._tick))

    def _check_limit(self, limit: float) -> None:
        """Find the messages that are in work for too long."""
        now = self._core.loop.time()
        over: dict[str, list[tuple[int, int]]] = {}
        for message, since in self.working.items():
            if now - since > limit and message not in self._lapsed:
                self._lapsed.add(message)
                over.setdefault(message.broker or "", []).append((message.offset or 0, 1))
        # A waiting message may have been taken right after the last tick.
        oldest = int((now - limit - self._period) * 1000)
        for broker, taken in self._in_work.items():
            old = [(start, end - start) for start, end, stamp in taken if stamp < oldest]
            for start, count in old:
                taken.put(start, start + count, 0)
            if old:
                over.setdefault(broker, []).extend(old)
        self._lapses += [(broker, runs, True) for broker, runs in over.items()]

    def _check_stalled(self, limit: float) -> None:
        """Find out whether no consumer will take the waiting messages."""
        waiting = self._pending()
        if not waiting or self._taking() or self._received() - waiting != self._progress[1]:
            self._record_progress()
        if not self.stalled:
            if self._handlers:
                self.stalled = len(self._lapsed) >= self._handlers
            else:
                self.stalled = waiting > 0 and self._core.loop.time() - self._progress[0] > limit
            if self.stalled:
                log.warning(
                    "channel %r: %s for longer than max_processing=%g s: %d waiting message(s) go to other consumers, "
                    "and none are requested until %s",
                    self._label,
                    "all handlers work" if self._handlers else "the program has taken no message",
                    limit,
                    waiting,
                    "a handler returns" if self._handlers else "it takes one",
                )
        if self.stalled:
            self._on_stalled()

    def _record_progress(self) -> None:
        self._progress = self._core.loop.time(), self._received() - self._pending()

    def _lapse(self, broker: str, runs: list[tuple[int, int]], *, overdue: bool) -> None:
        core = self._core
        remote = b"" if broker == core.broker else bytes.fromhex(broker)
        entries = b"".join(_ENTRY.pack(first, count, _LAPSE, 0) for first, count in runs)
        try:
            number = core.session.channel(FRAME, self._id, remote + entries)
        except BusError:
            return  # the connection is gone
        core.answer(number).add_done_callback(
            lambda answer: self._lapse_answered(broker, runs, answer, overdue=overdue)
        )

    def _lapse_answered(
        self, broker: str, runs: list[tuple[int, int]], answer: "asyncio.Future[Any]", *, overdue: bool
    ) -> None:
        """Log the messages whose leases end. Others were acknowledged by now, or redelivered to another consumer."""
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled():
            return
        if error is not None and not isinstance(error, AckLate):
            if self._joined():  # the next tick retries
                self._lapses.append((broker, runs, overdue))
            return
        if not overdue:
            return
        left = [] if error is None else msgspec.json.decode(str(error), type=list[tuple[int, int]])
        held = {offset for first, count in runs for offset in range(first, first + count)}
        held.difference_update(offset for first, count in left for offset in range(first, first + count))
        if not held:
            return
        log.warning(
            "channel %r: %d message(s), from offset %d on, are in work for longer than max_processing=%g s: "
            "their leases are no longer renewed, and they will be redelivered",
            self._label,
            len(held),
            min(held),
            self._limit,
        )
        self._core.events.emit(Event(kind="overdue", topic=self._label, count=len(held)))
