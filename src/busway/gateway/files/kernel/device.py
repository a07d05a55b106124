"""The open /dev/fuse of a mount: requests of the kernel in, answers out. A driver.

It is watched by the event loop once and for all; a request is read, handled and answered in one call of the loop. What waits
(a read with nothing to give, a question to the broker) is answered later, under the number of its request, unless whoever asked
is interrupted before that.
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
"""Called with the number of the request, the node and the body; the body is valid during the call only."""

_BURST: Final = 64
"""Requests that are handled before others have their turn."""
_PROBE: Final = 8
"""While requests come one by one a second read would be in vain; every so often one is tried."""
_HEADER: Final = protocol.HEADER.size
_OUT: Final = protocol.OUT.pack
_WROTE: Final = protocol.WROTE.pack


class Kernel:
    """Reads requests and hands them to the handler of their kind.

    Made with an open file that is not blocking, and with the seconds that a request may wait for the broker.
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
        self._crowded = False
        """Requests come faster than they are handled."""
        self.ended = asyncio.Event()
        """There is no mount any more."""
        self.requests = 0
        self.refused = 0
        """Requests that were answered with an error."""
        self.failed = 0
        """Requests that something was wrong with that should not have been; they were answered with EIO."""

    def start(self, table: dict[int, Handler]) -> None:
        """Handle requests from now on."""
        self._table = {**table, Op.INTERRUPT: self._interrupt}
        self._loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Let go of it; the kernel takes that for the end of the mount."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            for task in self._tasks.values():
                task.cancel()
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def _readable(self) -> None:
        table, buffer, unpack = self._table, self._buffer, protocol.ASKED.unpack_from
        limit = _BURST if self._crowded or not self.requests % _PROBE else 1
        for _ in range(limit):
            try:
                size = os.readv(self._fd, self._into)
            except BlockingIOError:
                self._crowded = False
                return
            except OSError as error:
                if error.errno in {ENOENT, EINTR}:  # it was interrupted before it was read
                    continue
                if error.errno != ENODEV:
                    log.error("the mount has ended: %s", error)  # noqa: TRY400 - it says all
                self.stop()
                return
            self.requests += 1
            try:
                op, number, node = unpack(buffer)
                handler = table.get(op)
                if handler is None:
                    self.fail(number, ENOSYS)
                    continue
                coming = handler(number, node, buffer[_HEADER:size])
                if coming is not None:
                    self._begin(number, coming)
            except OSError as error:
                self.fail(number, error.errno or EIO)
            except Exception as error:  # noqa: BLE001 - logged
                self._went_wrong(number, error)
        self._crowded = limit > 1  # and nothing has said that there is no more

    def _went_wrong(self, number: int, error: Exception) -> None:
        self.failed += 1
        log.error("a request of the kernel failed", exc_info=error)
        self.fail(number, EIO)

    @property
    def caller(self) -> int:
        """The thread that asks, while its request is handled; 0: it can't be seen from here."""
        (caller,) = protocol.CALLER.unpack_from(self._buffer)
        return int(caller)

    # What takes longer.

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._run(number, work), name=f"busway request {number}")
        if not task.done():
            self._tasks[number] = task
            task.add_done_callback(partial(self._ended, number, work))

    def _ended(self, number: int, work: Coroutine[Any, Any, None], task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # before it had begun, so that it could not answer: who asked would wait for ever
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
            self._went_wrong(number, error)
        finally:
            self._tasks.pop(number, None)

    def wait(self, number: int, interrupted: Callable[[int], None]) -> None:
        """A request is answered later; `interrupted` is called if nobody waits for it any more, and it has been answered."""
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
        """The answer is this."""
        self._waiting.pop(number, None)
        self._write(protocol.OUT.pack(16 + len(data), 0, number) + data)

    def blocks(self, number: int, blocks: Sequence[bytes]) -> None:
        """The answer is these, one behind the other."""
        if self._waiting:
            self._waiting.pop(number, None)
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        self._write(_OUT(16 + len(data), 0, number) + data)

    def wrote(self, number: int, size: int) -> None:
        """So many bytes were written."""
        self._write(_WROTE(24, 0, number, size, 0))

    def fail(self, number: int, code: int) -> None:
        """It can't be done."""
        self.refused += code != EAGAIN
        self._waiting.pop(number, None)
        self._write(protocol.OUT.pack(16, -code, number))

    def wake(self, key: int) -> None:
        """Whoever polls looks again."""
        self._write(protocol.WAKE.pack(24, 1, 0, key))

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError as error:
            # Who asked has been interrupted, or the mount is gone: nobody is left to tell.
            if error.errno not in {ENOENT, ENODEV, EBADF}:
                raise
