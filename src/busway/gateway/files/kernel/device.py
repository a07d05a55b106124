"""The open /dev/fuse of a mount: reads requests of the kernel, calls their handlers, and writes answers. A driver.

`door.py` creates it, `filesystem.py` has the handlers. The event loop watches the device; one callback reads, handles
and answers a request. A request that must wait (a read without data, a question to the broker) is answered later by
its number, unless its caller is interrupted.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from errno import EAGAIN, EBADF, EINTR, EIO, ENODEV, ENOENT, ENOSYS, ETIMEDOUT
from functools import partial
from typing import Any, Final, TypeAlias

from busway.gateway.files.kernel import protocol
from busway.gateway.files.kernel.protocol import Op

log = logging.getLogger("busway.gateway")

Handler: TypeAlias = Callable[[int, int, memoryview], Coroutine[Any, Any, None] | None]
"""Called with the number of the request, the node and the body, which is valid only during the call."""

_BURST: Final = 64
"""Requests per callback while the device is busy."""
_PROBE: Final = 8
"""While single requests arrive, only every eighth callback tries a second read, which usually finds nothing."""
_HEADER: Final = protocol.HEADER.size
_OUT: Final = protocol.OUT.pack
_WROTE: Final = protocol.WROTE.pack


class Kernel:
    """The kernel's side of a mount.

    `fd` is the open, non-blocking device; `patience` is the longest time in seconds that a request waits for the
    broker.
    """

    def __init__(self, fd: int, patience: float | None = None) -> None:
        self._fd = fd
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._table: dict[int, Handler] = {}
        self._buffer = memoryview(bytearray(protocol.BUFFER))
        self._into = [self._buffer]
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, Callable[[int], None]] = {}
        self._busy = False
        """Requests arrive faster than they are handled."""
        self.ended = asyncio.Event()
        """Set when the mount has ended."""
        self.requests = 0
        self.refused = 0
        """Requests answered with an error."""
        self.failed = 0
        """Requests with an internal error, answered with EIO."""

    def start(self, table: dict[int, Handler]) -> None:
        """Handle requests from now on, with a table of handlers by operation."""
        self._table = {**table, Op.INTERRUPT: self._interrupt}
        self._loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Close the device, which ends the mount for the kernel."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            for task in self._tasks.values():
                task.cancel()
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def _readable(self) -> None:
        table, buffer, unpack = self._table, self._buffer, protocol.REQUEST.unpack_from
        limit = _BURST if self._busy or not self.requests % _PROBE else 1
        for _ in range(limit):
            try:
                size = os.readv(self._fd, self._into)
            except BlockingIOError:
                self._busy = False
                return
            except OSError as error:
                if error.errno in {ENOENT, EINTR}:  # the request was interrupted before this read
                    continue
                if error.errno != ENODEV:
                    log.error("the mount has ended: %s", error)  # noqa: TRY400 - no traceback needed
                self.stop()
                return
            self.requests += 1
            try:
                op, number, node = unpack(buffer)
                handler = table.get(op)
                if handler is None:
                    self.fail(number, ENOSYS)
                    continue
                work = handler(number, node, buffer[_HEADER:size])
                if work is not None:
                    self._begin(number, work)
            except OSError as error:
                self.fail(number, error.errno or EIO)
            except Exception as error:  # noqa: BLE001 - logged
                self._unexpected(number, error)
        self._busy = limit > 1  # every read has found a request

    def _unexpected(self, number: int, error: Exception) -> None:
        self.failed += 1
        log.error("unexpected error in a request of the kernel", exc_info=error)
        self.fail(number, EIO)

    @property
    def caller(self) -> int:
        """The thread that has sent the request being handled; 0: the kernel can't name it."""
        (caller,) = protocol.CALLER.unpack_from(self._buffer)
        return int(caller)

    # Requests that wait.

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._run(number, work), name=f"busway request {number}")
        if not task.done():
            self._tasks[number] = task
            task.add_done_callback(partial(self._ended, number, work))

    def _ended(self, number: int, work: Coroutine[Any, Any, None], task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # before it has started, so it could not answer and the caller would wait forever
            self._tasks.pop(number, None)
            work.close()
            self.fail(number, EINTR)

    async def _run(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await work
        except asyncio.CancelledError:
            self.fail(number, EINTR)
        except TimeoutError as error:
            self.fail(number, error.errno or ETIMEDOUT)
        except OSError as error:
            self.fail(number, error.errno or EIO)
        except Exception as error:  # noqa: BLE001 - logged
            self._unexpected(number, error)
        finally:
            self._tasks.pop(number, None)

    def wait(self, number: int, interrupted: Callable[[int], None]) -> None:
        """Register a request that is answered later. `interrupted` is called if its caller is interrupted first."""
        self._waiting[number] = interrupted

    def _interrupt(self, _number: int, _node: int, body: memoryview) -> None:
        (number,) = protocol.HANDLE.unpack_from(body)
        if (interrupted := self._waiting.pop(number, None)) is not None:
            interrupted(number)
            self.fail(number, EINTR)
        elif (task := self._tasks.get(number)) is not None:
            task.cancel()

    # Answers.

    def data(self, number: int, data: bytes = b"") -> None:
        """Answer with data."""
        self._waiting.pop(number, None)
        self._write(protocol.OUT.pack(16 + len(data), 0, number) + data)

    def blocks(self, number: int, blocks: Sequence[bytes]) -> None:
        """Answer with several blocks of data."""
        if self._waiting:
            self._waiting.pop(number, None)
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        self._write(_OUT(16 + len(data), 0, number) + data)

    def wrote(self, number: int, size: int) -> None:
        """Answer a write: `size` bytes are accepted."""
        self._write(_WROTE(24, 0, number, size, 0))

    def fail(self, number: int, code: int) -> None:
        """Answer with an error code."""
        self.refused += code != EAGAIN
        self._waiting.pop(number, None)
        self._write(protocol.OUT.pack(16, -code, number))

    def wake(self, key: int) -> None:
        """Let the program that polls with this key check the file again."""
        self._write(protocol.WAKE.pack(24, 1, 0, key))

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError as error:
            # The caller was interrupted, or the mount has ended: no answer is needed.
            if error.errno not in {ENOENT, ENODEV, EBADF}:
                raise
