"""The folder `services`: a file for each service; what is written is a request, and what is read then the reply. A driver."""

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
from busway.gateway.files.nodes import File, Later, Node
from busway.gateway.files.topics.subscriptions import TopicSubscriptions, told
from busway.gateway.files.topics.tree import Paths, Tree

log = logging.getLogger("busway.gateway")

_UNDERWAY: Final = 64
"""Requests of one open file that wait for their replies, or replies that wait to be read."""


class Services:
    """All files of services."""

    def __init__(self, kernel: Kernel, source: TopicSubscriptions) -> None:
        self.kernel = kernel
        self.following = source
        self.paths = Paths()
        self.folder = Tree(self.paths, partial(ServiceNode, self)).folder()


class ServiceNode(Node):
    """The file of one service."""

    def __init__(self, services: Services, topic: str) -> None:
        self._services = services
        self._topic = topic

    @property
    def size(self) -> int:
        """As long as a request can be. Behind the end of a file the kernel lets nobody write while another one waits."""
        return min(self._services.following.settings.line, FULL)

    def open(self, flags: int) -> File:
        del flags
        self._services.paths.add(self._topic)
        return ServiceFile(self._services, self._topic)

    def attributes(self) -> dict[str, bytes]:
        return {"busway.topic": self._topic.encode()}


class ServiceFile(File):
    """An open one: requests, and their replies in the same order. Each reply ends with an end of file."""

    flags = DIRECT_IO | STREAM | PARALLEL

    def __init__(self, services: Services, topic: str) -> None:
        super().__init__(services.kernel)
        self._following = services.following
        self._topic = topic
        self._replies: deque[asyncio.Task[bytes]] = deque()
        self._rest: bytes | None = None
        """What was not read of the first reply; None: it was not begun."""
        self._reads: deque[tuple[int, int]] = deque()
        self._room = asyncio.Event()
        """Set when a reply was read."""
        self._gathering = LongWrites(services.kernel, self._following.settings.line, self._begin, self._dropped)

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Later | None:
        size = len(data)
        request: bytes | None = bytes(data)
        if offset or size > FULL or self._gathering:
            request = self._gathering.add(offset, bytes(data), partial(self._check, flags))
        elif size > self._following.settings.line:
            raise OSError(EMSGSIZE, f"a request has {self._following.settings.line} bytes at most")
        if request is None:
            self.kernel.wrote(number, size)
            return None
        if self._full and not flags & os.O_NONBLOCK:
            return self._begin_later(number, request, size)
        if not offset:  # for one that was begun before there was room then
            self._check(flags, request, size)
        self._begin(request)
        self.kernel.wrote(number, size)
        return None

    @property
    def _full(self) -> bool:
        return len(self._replies) >= _UNDERWAY

    def _check(self, flags: int, _data: bytes, _total: int | None) -> None:
        if self._full and flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "read the replies first")

    def _begin(self, request: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(request.removesuffix(b"\n")))
        task.add_done_callback(lambda _: self._arrived())
        self._replies.append(task)

    async def _begin_later(self, number: int, request: bytes, size: int) -> None:
        """Wait until a reply was read, but not for ever: others may not be able to write to the service meanwhile."""
        while self._full:
            self._room.clear()
            await self._room.wait()
        self._begin(request)
        self.kernel.wrote(number, size)

    def _dropped(self, size: int) -> None:
        log.warning("%d bytes of a longer request to %r are dropped: its rest was not written", size, self._topic)

    def flush(self, number: int) -> None:
        self._gathering.used()
        self.kernel.data(number)

    def _taken(self) -> None:
        """The first reply was read."""
        self._replies.popleft()
        self._room.set()

    async def _ask(self, payload: bytes) -> bytes:
        try:
            reply = await self._following.bus.request(self._topic, payload, timeout=self._following.settings.request)
        except BusError as error:
            raise told(error) from error
        return reply.payload

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self._gathering:
            self._gathering.used()
        if offset and self._rest is None:
            self.kernel.data(number)
        elif not self._replies:
            raise OSError(ENODATA, "write a request first")
        elif self._replies[0].done():
            self._give(number, size)
        elif flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "the reply has not come")
        else:
            self._reads.append((number, size))
            self.kernel.wait(number, self._interrupted)

    def _give(self, number: int, size: int) -> None:
        reply = self._replies[0]
        if (error := reply.exception()) is not None:
            self._taken()
            raise error
        if self._rest is None:
            self._rest = reply.result()
            if not self._rest:  # an empty reply is told by its end alone
                self._rest = None
                self._taken()
                self.kernel.data(number)
                return
        data, self._rest = self._rest[:size], self._rest[size:]
        self.kernel.data(number, data)
        if not data:
            self._rest = None
            self._taken()

    def _interrupted(self, number: int) -> None:
        self._reads = deque(one for one in self._reads if one[0] != number)

    def poll(self, key: int, flags: int) -> int:
        if self._gathering:
            self._gathering.used()
        return super().poll(key, flags)

    def ready(self) -> bool:
        return bool(self._replies) and self._replies[0].done()

    def _arrived(self) -> None:
        while self._reads and self.ready():
            number, size = self._reads.popleft()
            try:
                self._give(number, size)
            except OSError as error:
                self.kernel.fail(number, error.errno or ENODATA)
        if self.ready():
            self.wake()

    def close(self) -> None:
        self._gathering.close()
        for task in self._replies:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # nobody reads it
        self._replies.clear()
