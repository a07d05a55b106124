"""Worker process of `busway bench`: publisher, subscriber, service or requester.

busway.cli.bench.bench runs `python -m busway.cli.bench.worker ROLE JSON`. The worker writes JSON lines to stdout:
{"ready": true}, after a line on stdin {"done": n} from time to time, and at the end {"result": ...} or {"error": text}.
Times are of the system-wide monotonic clock, so that the parent can compare the times of several processes.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

import busway
from busway.message import Message

_INTERVAL = 0.1
"""Seconds between two reports of the progress."""


class Job(msgspec.Struct, frozen=True):
    """The parameters of a worker, set by the parent."""

    url: str
    topic: str
    count: int
    size: int = 128
    each: bool = False
    """True for one await per message, False for lists of messages."""
    group: str = ""
    in_flight: int = 1
    silence: float = 10.0
    """Seconds without a message after which a subscriber stops waiting."""


def write(**values: Any) -> None:
    """Write a JSON line to the parent."""
    sys.stdout.write(msgspec.json.encode(values).decode() + "\n")
    sys.stdout.flush()


class _Progress:
    """Reports the number of messages to the parent, at most ten times per second."""

    def __init__(self) -> None:
        self._next = 0.0

    def report(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            write(done=done)


async def _wait_for_start() -> None:
    write(ready=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise SystemExit(1)  # the parent has ended


async def publish(job: Job) -> dict[str, Any]:
    payload = bytes(job.size)
    progress = _Progress()
    async with busway.connect(job.url, name="bench-publisher") as bus:
        await _wait_for_start()
        first = time.monotonic()
        if job.each:
            for sent in range(job.count):
                await bus.publish(job.topic, payload)
                if not sent & 0xFFFF:
                    progress.report(sent)
        else:
            run = [payload] * 8192
            for start in range(0, job.count, len(run)):
                await bus.publish_many(job.topic, run[: job.count - start])
                progress.report(start)
        if job.group:
            await bus.publish(f"{job.topic}/end")
        await bus.flush(timeout=120)
        return {"sent": job.count, "first": first, "last": time.monotonic()}


async def subscribe(job: Job) -> dict[str, Any]:
    if job.group:
        return await _member(job)
    progress = _Progress()
    received = 0
    last = 0.0
    async with (
        busway.connect(job.url, name="bench-subscriber") as bus,
        bus.subscribe(job.topic) as subscription,
    ):
        await _wait_for_start()

        async def take_each() -> None:
            nonlocal received, last
            async for _ in subscription:
                received += 1
                if received == job.count:
                    break
                if not received & 0xFFFF:
                    progress.report(received)
            last = time.monotonic()

        async def take_batches() -> None:
            nonlocal received, last
            async for batch in subscription.batches():
                received += len(batch)
                if received >= job.count:
                    break
                progress.report(received)
            last = time.monotonic()

        await _until_silent(take_each() if job.each else take_batches(), lambda: received, job.silence)
        return {"received": received, "last": last, "missed": subscription.missed}


async def _member(job: Job) -> dict[str, Any]:
    """Receive the share of a group member. A message on another topic, which every member gets, marks the end."""
    received = 0
    last = 0.0
    async with (
        busway.connect(job.url, name="bench-member") as bus,
        bus.subscribe(job.topic, group=job.group) as share,
        bus.subscribe(f"{job.topic}/end") as end,
        asyncio.TaskGroup() as tasks,
    ):
        await _wait_for_start()

        async def take() -> None:
            nonlocal received, last
            async for batch in share.batches():
                received += len(batch)
                last = time.monotonic()

        taking = tasks.create_task(take())
        await _until_silent(end.recv(), lambda: received, job.silence)
        taking.cancel()
        await asyncio.wait([taking])
        if share.pending:
            received += len(await share.take(share.pending))
            last = time.monotonic()
    return {"received": received, "last": last, "missed": share.missed}


async def _until_silent(work: Coroutine[Any, Any, object], received: Callable[[], int], silence: float) -> None:
    """Run `work`, but cancel it if no message arrives for `silence` seconds: dropped messages never arrive."""
    task = asyncio.ensure_future(work)
    try:
        before = -1
        while not task.done() and received() != before:
            before = received()
            await asyncio.wait([task], timeout=silence)
        if task.done():
            await task
    finally:
        task.cancel()


async def serve(job: Job) -> dict[str, Any]:
    def echo(message: Message) -> bytes:
        return message.payload

    async with busway.connect(job.url, name="bench-service") as bus, bus.serve(job.topic, echo):
        await _wait_for_start()
        await asyncio.to_thread(sys.stdin.readline)  # until the parent writes a second line or ends
        return {}


async def request(job: Job) -> dict[str, Any]:
    payload = bytes(job.size)
    progress = _Progress()
    times: list[float] = []
    async with busway.connect(job.url, name="bench-requester") as bus:
        await bus.request(job.topic, payload)
        await _wait_for_start()

        async def one_after_another(count: int) -> None:
            for _ in range(count):
                start = time.perf_counter()
                await bus.request(job.topic, payload)
                times.append(time.perf_counter() - start)
                if not len(times) & 0x3FF:
                    progress.report(len(times))

        first = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for place in range(job.in_flight):
                share = job.count // job.in_flight + (place < job.count % job.in_flight)
                tasks.create_task(one_after_another(share))
        last = time.monotonic()
    times.sort()
    found = {f"p{name}": times[min(len(times) - 1, int(len(times) * part))] for name, part in _PERCENTILES}
    return {"requests": len(times), "first": first, "last": last, **found}


_PERCENTILES = (("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999))
_ROLES: dict[str, Callable[[Job], Awaitable[dict[str, Any]]]] = {
    "publish": publish,
    "subscribe": subscribe,
    "serve": serve,
    "request": request,
}


def main() -> None:
    role, job = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Job)

    async def work() -> dict[str, Any]:
        return await _ROLES[role](job)

    logging.getLogger("busway").addHandler(logging.NullHandler())  # the parent reports errors
    try:
        result = busway.run(work())
    except (busway.BusError, OSError, ValueError, ExceptionGroup) as raised:
        error: Exception = raised
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        name = "" if isinstance(error, busway.BusError) else f"{type(error).__name__}: "
        write(error=name + " ".join(str(error).split()))
        sys.exit(1)
    write(result=result | {"cpu": time.process_time()})


if __name__ == "__main__":
    main()
