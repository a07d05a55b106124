"""The folder `services`: a file per service. A write is a request, and the next read returns the reply. A driver.

`door.py` adds the folder to a mount.
"""

import asyncio
import logging
import os
from collections import deque
from errno import EAGAIN, EMSGSIZE, ENODATA
from functools import partial
from typing import Final

from busway.errors import BusError
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import DIRECT_IO, PARALLEL, STREAM
from busway.gateway.files.long_writes import FULL, LongWrites
from busway.gateway.files.nodes import Continuation, File, Node
from busway.gateway.files.topics.subscriptions import TopicSubscriptions, os_error
from busway.gateway.files.topics.tree import Paths, Tree

log = logging.getLogger("busway.gateway")

_PENDING: Final = 64
"""Requests of one open file whose reply has not come or is not read."""


class Services:
    """All service files."""

    def __init__(self, kernel: Kernel, source: TopicSubscriptions) -> None:
        self.kernel = kernel
        self.subscriptions = source
        self.paths = Paths()
        self.folder = Tree(self.paths, partial(ServiceNode, self)).folder()


class ServiceNode(Node):
    """The file of one service."""

    def __init__(self, services: Services, topic: str) -> None:
        self._services = services
        self._topic = topic

    @property
    def size(self) -> int:
        """The longest request. Beyond the end of a file the kernel allows no second write while one waits."""
        return min(self._services.subscriptions.settings.line, FULL)

    def open(self, flags: int) -> File:
        del flags
        self._services.paths.add(self._topic)
        return ServiceFile(self._services, self._topic)

    def attributes(self) -> dict[str, bytes]:
        return {"busway.topic": self._topic.encode()}


class ServiceFile(File):
    """An open service file: requests, and their replies in the same order. An end of file follows each reply."""

    flags = DIRECT_IO | STREAM | PARALLEL

    def __init__(self, services: Services, topic: str) -> None:
        super().__init__(services.kernel)
        self._subscriptions = services.subscriptions
        self._topic = topic
        self._replies: deque[asyncio.Task[bytes]] = deque()
        self._rest: bytes | None = None
        """The unread rest of the first reply; None: no byte of it was read."""
        self._reads: deque[tuple[int, int]] = deque()
        """Number and size of the reads that wait for a reply."""
        self._room = asyncio.Event()
        """Set when a reply was read to its end."""
        self._long_writes = LongWrites(services.kernel, self._subscriptions.settings.line, self._begin, self._dropped)

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Continuation | None:
        size = len(data)
        request: bytes | None = bytes(data)
        if offset or size > FULL or self._long_writes:
            request = self._long_writes.add(offset, bytes(data), partial(self._check, flags))
        elif size > self._subscriptions.settings.line:
            raise OSError(EMSGSIZE, f"the request is too long: it may have {self._subscriptions.settings.line} bytes")
        if request is None:
            self.kernel.wrote(number, size)
            return None
        if self._full and not flags & os.O_NONBLOCK:
            return self._begin_later(number, request, size)
        if not offset:  # add() has checked a long write at its beginning
            self._check(flags, request, size)
        self._begin(request)
        self.kernel.wrote(number, size)
        return None

    @property
    def _full(self) -> bool:
        return len(self._replies) >= _PENDING

    def _check(self, flags: int, _data: bytes, _total: int | None) -> None:
        if self._full and flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "too many unread replies: read them first")

    def _begin(self, request: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(request.removesuffix(b"\n")))
        task.add_done_callback(lambda _: self._arrived())
        self._replies.append(task)

    async def _begin_later(self, number: int, request: bytes, size: int) -> None:
        """Begin a request when a reply was read. `Kernel` limits the wait, because it may block other writers."""
        while self._full:
            self._room.clear()
            await self._room.wait()
        self._begin(request)
        self.kernel.wrote(number, size)

    def _dropped(self, size: int) -> None:
        log.warning(
            "%d bytes of a request to %r are dropped: the rest of the request was not written", size, self._topic
        )

    def flush(self, number: int) -> None:
        self._long_writes.used()
        self.kernel.data(number)

    def _finish(self) -> None:
        """Remove the first reply, which was read to its end."""
        self._replies.popleft()
        self._room.set()

    async def _ask(self, payload: bytes) -> bytes:
        try:
            reply = await self._subscriptions.bus.request(
                self._topic, payload, timeout=self._subscriptions.settings.request
            )
        except BusError as error:
            raise os_error(error) from error
        return reply.payload

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self._long_writes:
            self._long_writes.used()
        if offset and self._rest is None:
            self.kernel.data(number)
        elif not self._replies:
            raise OSError(ENODATA, "there is no reply: write a request first")
        elif self._replies[0].done():
            self._answer(number, size)
        elif flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "the reply has not arrived")
        else:
            self._reads.append((number, size))
            self.kernel.wait(number, self._interrupted)

    def _answer(self, number: int, size: int) -> None:
        reply = self._replies[0]
        if (error := reply.exception()) is not None:
            self._finish()
            raise error
        if self._rest is None:
            self._rest = reply.result()
            if not self._rest:  # an empty reply is only an end of file
                self._rest = None
                self._finish()
                self.kernel.data(number)
                return
        data, self._rest = self._rest[:size], self._rest[size:]
        self.kernel.data(number, data)
        if not data:
            self._rest = None
            self._finish()

    def _interrupted(self, number: int) -> None:
        self._reads = deque(read for read in self._reads if read[0] != number)

    def poll(self, key: int, flags: int) -> int:
        if self._long_writes:
            self._long_writes.used()
        return super().poll(key, flags)

    def ready(self) -> bool:
        return bool(self._replies) and self._replies[0].done()

    def _arrived(self) -> None:
        while self._reads and self.ready():
            number, size = self._reads.popleft()
            try:
                self._answer(number, size)
            except OSError as error:
                self.kernel.fail(number, error.errno or ENODATA)
        if self.ready():
            self.wake()

    def close(self) -> None:
        self._long_writes.close()
        for task in self._replies:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # marks the error as seen, because no read will get it
        self._replies.clear()
