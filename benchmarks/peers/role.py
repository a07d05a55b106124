"""What every measured process has in common: talking to the harness, counting what arrives, timing requests.

Started as `python -m benchmarks.peers.role SYSTEM ROLE LOAD`. The harness writes `go`, `count` and `stop` to standard
input; the process answers with one JSON object per line. All times are CLOCK_MONOTONIC, which processes share.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from time import monotonic, perf_counter_ns, process_time
from typing import Any

import msgspec
import uvloop

from .load import CHUNK, IN_FLIGHT, MARK, Load


class Control:
    """The line to the harness. Its thread sleeps in a read while messages flow, so it costs the measured loop nothing."""

    def __init__(self) -> None:
        self._go = threading.Event()
        self._stop: Callable[[], object] = lambda: os._exit(3)
        self._tally: Tally | None = None
        self._cpu = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            match line.strip():
                case "go":
                    self._go.set()
                case "count":
                    self.tell(counted=self._tally.count if self._tally else 0)
                case "stop":
                    self._stop()
        os._exit(4)  # the harness is gone

    def tell(self, **values: Any) -> None:
        sys.stdout.write(msgspec.json.encode(values).decode() + "\n")
        sys.stdout.flush()

    def on_stop(self, callback: Callable[[], object]) -> None:
        self._stop = callback

    def ready(self) -> None:
        self._cpu = process_time()
        self.tell(ready=True)

    def cpu(self) -> float:
        """CPU seconds since this process was ready."""
        return process_time() - self._cpu

    def ready_to_go(self) -> None:
        """Say that all is set up, and wait for the start."""
        self.ready()
        self._go.wait()

    def chunks(self, load: Load) -> Iterator[range]:
        """Chunks of messages to publish until the time is over; then tells how many that were."""
        published = 0
        begin = monotonic()
        end = begin + load.seconds
        while monotonic() < end:
            yield range(CHUNK)
            published += CHUNK
        self._published = {"published": published, "begin": begin}

    def published(self) -> None:
        """Say that everything has left this process (call after flushing)."""
        self.tell(**self._published, end=monotonic(), cpu=self.cpu())

    @contextlib.contextmanager
    def counting(self, load: Load) -> Iterator["Tally"]:
        """Count until the harness says stop, then tell what was counted."""
        self._tally = Tally(load.warm)
        try:
            yield self._tally
        finally:
            self.tell(**self._tally.outcome(), cpu=self.cpu())


class Tally:
    """What one receiver got and when.

    The receiver keeps `count` in a local variable and calls note() when it has reached the mark that the last call gave.
    """

    def __init__(self, warm: float) -> None:
        self._warm = warm
        self.count = 0
        self.missed = 0  # what the system itself says it did not deliver
        self.mark = MARK
        self._begin = 0.0
        self._first = 0.0
        self._first_count = 0
        self._last = 0.0
        self._last_count = 0
        self._samples: list[tuple[float, int]] = []

    def note(self, count: int) -> int:
        now = monotonic()
        if not self._begin:
            self._begin = now
        if not self._first and now - self._begin >= self._warm:
            self._first, self._first_count = now, count
        self._last, self._last_count = now, count
        self.count = count
        if not self._samples or now - self._samples[-1][0] > 0.05:
            self._samples.append((now, count))
        self.mark = count - count % MARK + MARK
        return self.mark

    def outcome(self) -> dict[str, Any]:
        return {
            "received": self.count,
            "missed": self.missed,
            "first": self._first,
            "first_count": self._first_count,
            "last": self._last,
            "last_count": self._last_count,
            "samples": self._samples,
        }


def run(control: Control, work: Coroutine[Any, Any, None]) -> None:
    """Run a role on uvloop, the same loop for every asyncio client; `stop` cancels it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        control.on_stop(lambda: loop.call_soon_threadsafe(task.cancel))
        with contextlib.suppress(asyncio.CancelledError):
            await work

    uvloop.run(main())


async def forever() -> None:
    """Wait for `stop`."""
    await asyncio.get_running_loop().create_future()


class Stopwatch:
    """Times of requests, the warm-up left out."""

    def __init__(self, load: Load) -> None:
        now = monotonic()
        self._warm_end = now + load.warm
        self.end = now + load.seconds
        self._times: list[int] = []
        self._begin = 0.0
        self._last = 0.0

    def add(self, nanoseconds: int) -> bool:
        """Note one request; false once the time is over."""
        now = monotonic()
        if now >= self._warm_end:
            if not self._begin:
                self._begin = now
            self._times.append(nanoseconds)
            self._last = now
        return now < self.end

    def outcome(self) -> dict[str, Any]:
        times = sorted(self._times)
        if len(times) < 2:
            raise RuntimeError("too few requests were answered")
        return {
            "requests": len(times),
            "rate": (len(times) - 1) / (self._last - self._begin),
            "p50": times[len(times) // 2] / 1000,
            "p90": times[len(times) * 9 // 10] / 1000,
            "p99": times[len(times) * 99 // 100] / 1000,
            "p999": times[len(times) * 999 // 1000] / 1000,
            "max": times[-1] / 1000,
        }


class Acknowledged:
    """Publishes that were acknowledged, the warm-up left out of their rate.

    Acknowledgements come in bursts, so it is counted from the last one of the warm-up, the end of a burst, to the very last.
    """

    def __init__(self, load: Load, now: float | None = None) -> None:
        now = monotonic() if now is None else now
        self._warm_end = now + load.warm
        self._end = now + load.seconds
        self.count = 0
        self._begin = self._last = now
        self._begin_count = 0

    def add(self, count: int, now: float | None = None) -> bool:
        """Note so many; false once the time is over."""
        now = monotonic() if now is None else now
        self.count += count
        self._last = now
        if now < self._warm_end:
            self._begin, self._begin_count = now, self.count
        return now < self._end

    @property
    def rate(self) -> float:
        """Messages a second."""
        measured = self.count - self._begin_count
        if not measured:
            raise RuntimeError("too few publishes were acknowledged")
        return measured / (self._last - self._begin)

    def tell(self, control: Control) -> None:
        control.tell(acknowledged=self.count, rate=self.rate, cpu=control.cpu())


async def keep_in_flight(load: Load, control: Control, publish: Callable[[], Awaitable[object]]) -> None:
    """Publish with `IN_FLIGHT` publishes waiting for their acknowledgement, as every asyncio client does here."""
    control.ready_to_go()
    acknowledged = Acknowledged(load)

    async def one_after_another() -> None:
        going = True
        while going:
            await publish()
            going = acknowledged.add(1)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(one_after_another())
    acknowledged.tell(control)


class Consumed:
    """Times how long it takes to get `load.messages` messages."""

    def __init__(self, load: Load, control: Control) -> None:
        self.wanted = load.messages
        self._control = control
        control.ready_to_go()
        self._begin = monotonic()
        self._elapsed = self._cpu = 0.0

    def over(self) -> None:
        """All have been received."""
        self._elapsed, self._cpu = monotonic() - self._begin, self._control.cpu()

    def tell(self, received: int, left: int = 0) -> None:
        """`left` is what the broker still wants to have acknowledged."""
        self._control.tell(received=received, left=left, elapsed=self._elapsed, cpu=self._cpu)


async def ask(load: Load, control: Control, request: Callable[[], Awaitable[object]]) -> None:
    """Request with `load.window` requests in flight, as every asyncio client does here."""
    control.ready_to_go()
    watch = Stopwatch(load)

    async def one_after_another() -> None:
        going = True
        while going:
            begin = perf_counter_ns()
            await request()
            going = watch.add(perf_counter_ns() - begin)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.window):
            tasks.create_task(one_after_another())
    control.tell(**watch.outcome())


def main() -> None:
    from .systems import find

    name, role, load = sys.argv[1:]
    getattr(find(name), role)(msgspec.json.decode(load, type=Load), Control())


if __name__ == "__main__":
    main()
