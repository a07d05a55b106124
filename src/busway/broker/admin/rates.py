"""`$bus/rates`: the broker's figures of the last ten minutes, one sample a second. The driver of `rate_history`.

The hub makes the sampler, and the server starts and stops it. A sample takes well below a millisecond: it reads counters
of the engine, and figures of at most LISTED streams and channels.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import Message
from busway.broker.admin.rate_history import RateHistory
from busway.common import environment
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.hub import Hub

EVERY: Final = 1.0
"""Seconds between two samples."""
LISTED: Final = 200
"""Streams, and channels, that have figures."""
_CHANNEL: Final = ("lag", "in_flight", "floor", "redelivered", "dead")
_TOTALS: Final = (
    "connections",
    "subscriptions",
    "topics",
    "pending",
    "slow_consumers",
    "outbox_bytes",
    "aside_bytes",
    "messages_received",
    "messages_delivered",
    "messages_dropped",
    "messages_unroutable",
    "messages_rejected",
    "received_bytes",
    "delivered_bytes",
    "requests",
    "pushes",
    "protocol_errors",
    "rule_errors",
)
"""The counters of the engine that have a history."""


class RatesQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/rates`: samples from the number `since` on, of these figures.

    Without `figures` the answer has those of the broker, without those of single streams and channels.
    """

    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    figures: tuple[str, ...] | None = None


class RateSampler:
    """Samples the figures of one broker."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._history = RateHistory()
        self._timer: asyncio.TimerHandle | None = None
        self._totals: tuple[str, ...] = ()

    def start(self) -> None:
        """Take a sample now, and then every second."""
        self._timer = self._hub.loop.call_later(EVERY, self.start)
        figures = dict(self._sample())
        self._totals = tuple(figures)
        with suppress(BusError):  # a stream is being closed: the sample has figures of the others
            figures.update(self._streams())
        self._history.add(environment.time_ns() / 1e9, figures)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answer(self, question: RatesQuestion) -> dict[str, Any]:
        """The answer to a request."""
        if question.figures is None:
            found = {"names": self._history.names()} | self._history.since(question.since, self._totals)
        else:
            found = self._history.since(question.since, question.figures)
        return {"every": EVERY} | found

    def _sample(self) -> Iterator[tuple[str, float]]:
        hub, runtime = self._hub, self._hub.runtime
        stats = hub.engine.stats()
        for name in _TOTALS:
            yield name, stats[name]
        yield "refused", runtime.refused
        yield "faults", runtime.faults
        yield "errors", runtime.errors
        yield "kept", len(hub.retained.box)
        yield "kept_bytes", hub.retained.box.bytes
        yield "cpu_seconds", time.process_time()
        yield "memory", resident()
        if (disk := hub.disk.figures()) is not None and disk["free"] is not None:
            yield "disk_free", disk["free"]

    def _streams(self) -> Iterator[tuple[str, float]]:
        hub = self._hub
        streams = list(islice(hub.streams.by_name.items(), LISTED))
        for name, stream in streams:
            yield f"stream/{name}/end", stream.safe
            yield f"stream/{name}/bytes", stream.log.usage[0]
        for driver in islice((driver for name, _ in streams for driver in hub.channels.found(name, None)), LISTED):
            figures = driver.machine.figures()
            # The machine learns of new messages when it has something to do.
            figures["lag"] += max(driver.stream.safe - driver.machine.status.safe, 0)
            place = f"channel/{driver.stream.config.name}/{driver.name}"
            for figure in _CHANNEL:
                yield f"{place}/{figure}", figures[figure]


def rates(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/rates`: samples of the last ten minutes."""
    payload = message.payload
    return hub.rates.answer(msgspec.json.decode(payload, type=RatesQuestion) if payload else RatesQuestion())


def resident() -> int:
    """Bytes of memory that the process uses; the largest number so far on systems without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource  # noqa: PLC0415, Windows has none

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
