"""Payloads that `pub`, `push`, `req` and `post` send: one, repeated, or one per line, limited by count and rate."""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import typer

from busway.cli.common.progress import Sending

_CHUNK = 256 * 1024
_RUN = 1024  # repeats of one payload that are sent together


@dataclass(frozen=True, slots=True)
class Source:
    """The flags that define the payloads of a verb. Call checked() before anything else."""

    body: str | None
    file: str | None
    lines: bool
    count: int | None = None
    rate: float | None = None
    seconds: float | None = None

    def checked(self) -> "Source":
        if self.file is not None and self.body is not None:
            raise typer.BadParameter("give a payload or --file, not both")
        if self.lines and self.body not in (None, "-"):
            raise typer.BadParameter("--lines reads stdin or --file; it takes no payload")
        return self

    @property
    def lasts(self) -> bool:
        """True if sending may take long: several messages, a rate or a time."""
        return self.rate is not None or self.seconds is not None or (self.count or 1) > 1

    def progress(self, *, shown: bool) -> Sending:
        """Return a progress bar. `shown`: no other output of the verb would disturb it."""
        return Sending(None if self.lines else self.count, shown=shown and self.lasts)

    async def whole(self) -> bytes:
        """Return the only payload, from the argument, the file or stdin."""
        if self.file is not None or self.body == "-":
            return b"".join([chunk async for chunk in _chunks(self.file)])
        return (self.body or "").encode("utf-8", "surrogateescape")

    async def runs(self) -> AsyncIterator[list[bytes]]:
        """Yield lists of payloads, each when its time has come."""
        pace = _Pace(self.count, self.rate, self.seconds)
        if self.lines:
            async for lines in pace.until_over(_lines(self.file)):
                for run in pace.cut(lines):
                    if not await pace.ready():
                        return
                    yield run
                if pace.over:
                    return
            return
        payload = await self.whole()
        if self.count is None and self.seconds is None:
            pace.left = 1
        while not pace.over:
            for run in pace.cut([payload] * min(_RUN, pace.left or _RUN)):
                if not await pace.ready():
                    return
                yield run


class _Pace:
    """Limits sending: how many payloads are left, when the next one is due, and when sending ends."""

    def __init__(self, count: int | None, rate: float | None, seconds: float | None) -> None:
        self.left = count
        self._interval = 1 / rate if rate else 0.0
        now = time.monotonic()
        self._next = now
        self._end = None if seconds is None else now + seconds

    @property
    def over(self) -> bool:
        return self.left == 0 or (self._end is not None and time.monotonic() >= self._end)

    def cut(self, payloads: list[bytes]) -> list[list[bytes]]:
        """Count payloads against the limit, and split them into runs. With a rate each payload is its own run."""
        if self.left is not None:
            payloads = payloads[: self.left]
            self.left -= len(payloads)
        return [[payload] for payload in payloads] if self._interval else [payloads] if payloads else []

    async def until_over(self, source: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
        """Yield from `source` until it ends or the time is up."""
        while True:
            try:
                async with asyncio.timeout(None if self._end is None else max(0.0, self._end - time.monotonic())):
                    lines = await anext(source)
            except (StopAsyncIteration, TimeoutError):
                return
            yield lines

    async def ready(self) -> bool:
        """Wait until the next run is due. Returns False if sending ends before."""
        now = time.monotonic()
        if self._end is not None and max(now, self._next) >= self._end:
            await asyncio.sleep(max(0.0, self._end - now))
            return False
        if self._interval:
            await asyncio.sleep(max(0.0, self._next - now))
            self._next = max(self._next, now - 1.0) + self._interval  # a pause is not followed by a burst
        return True


async def _lines(file: str | None) -> AsyncIterator[list[bytes]]:
    """Yield lines as they arrive. Text after the last newline is a line, too."""
    rest = b""
    async for chunk in _chunks(file):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _chunks(file: str | None) -> AsyncIterator[bytes]:
    """Read chunks in a thread: stdin may be silent for hours, and the connection must answer heartbeats in that time.

    The thread is a daemon and does not use Python's buffers: an interrupt can't wake a read from a terminal, and the
    interpreter would wait for the lock of the buffer.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(4)

    def pump(descriptor: int) -> None:
        chunk: bytes | OSError = b"?"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(descriptor, _CHUNK)
            except OSError as error:
                chunk = error
            putting = queue.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, concurrent.futures.CancelledError):
                putting.close()
                return  # the loop has ended

    with contextlib.ExitStack() as stack:
        stdin = file in (None, "-")
        opened = sys.stdin if stdin else stack.enter_context(Path(str(file)).open("rb", buffering=0))  # noqa: ASYNC230
        threading.Thread(target=pump, args=(opened.fileno(),), daemon=True, name="busway-input").start()
        while chunk := await queue.get():
            if isinstance(chunk, OSError):
                raise chunk
            yield chunk
