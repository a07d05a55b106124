"""The file `fusebus`: each open file is a client; writes are commands and messages, reads return messages. A driver.

`door.py` adds the file to a mount.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Collection
from errno import EAGAIN, EINVAL, EMSGSIZE
from functools import partial

from busway.fuse.format import HEAD, MESSAGE, WORD
from busway.gateway.files.config import Mount
from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.exchange import Client, Exchange
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import DIRECT_IO, PARALLEL, STREAM
from busway.gateway.files.long_writes import FULL, PATIENCE, LongWrites
from busway.gateway.files.nodes import Continuation, File, Node

log = logging.getLogger("busway.gateway")


class BusNode(Node):
    """The file `fusebus` in its folder."""

    def __init__(self, kernel: Kernel, exchange: Exchange, bridge: Bridge, settings: Mount) -> None:
        self._kernel = kernel
        self._exchange = exchange
        self._bridge = bridge
        self._settings = settings
        self._files: dict[Client, BusFile] = {}
        bridge.on_messages = self.wake

    @property
    def size(self) -> int:
        """The longest write. Beyond the end of a file the kernel allows no second write while one waits for room."""
        return min(self._settings.max_message + HEAD, FULL)

    def open(self, flags: int) -> File:
        del flags
        client = self._exchange.open()
        file = self._files[client] = BusFile(self, client, self._kernel, self._exchange, self._bridge, self._settings)
        return file

    def closed(self, client: Client) -> None:
        """A client has closed its file."""
        del self._files[client]
        self._exchange.close(client)
        if client.lost:
            log.warning("the client %d of the file fusebus has missed %d messages", client.number, client.lost)
        if client.skipped:
            log.warning(
                "the client %d of the file fusebus has skipped %d messages: its reads had no room for them",
                client.number,
                client.skipped,
            )

    def wake(self, clients: Collection[Client]) -> None:
        """These clients have a message to read."""
        for client in clients:
            self._files[client].arrived()

    async def wait_for_writes(self) -> None:
        """Wait until no file has an unfinished write, for some seconds at most."""
        for _ in range(40):
            if not any(file.holds for file in self._files.values()):
                return
            await asyncio.sleep(PATIENCE / 20)

    def attributes(self) -> dict[str, bytes]:
        exchange = self._exchange
        store = exchange.store
        figures = {
            "clients": len(exchange.clients),
            "kept": store.next - store.oldest,
            "kept_bytes": store.used,
            "oldest": store.oldest,
            "next": store.next,
            "received": exchange.received,
            "lost": exchange.lost,
            "skipped": exchange.skipped,
            "too_long": self._bridge.too_long,
            "unpublished": self._bridge.unpublished,
        }
        return {f"busway.{name}": str(figure).encode() for name, figure in figures.items()}


class BusFile(File):
    """One client. A read without a message waits, unless the file is non-blocking or the mount has empty reads."""

    # As a stream a file has no position: every read and write begins at offset 0, and none waits for another.
    flags = DIRECT_IO | STREAM | PARALLEL

    def __init__(
        self, node: BusNode, client: Client, kernel: Kernel, exchange: Exchange, bridge: Bridge, settings: Mount
    ) -> None:
        super().__init__(kernel)
        self.client = client
        self._node = node
        self._exchange = exchange
        self._bridge = bridge
        self._long_writes = LongWrites(kernel, settings.max_message + HEAD, self._completed_late, self._dropped)
        self._empty_reads = settings.empty_reads
        self._reads: deque[tuple[int, int]] = deque()
        """Number and size of the reads that wait."""

    # Writing.

    @property
    def holds(self) -> bool:
        """Whether the file has an unfinished write."""
        return bool(self._long_writes)

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Continuation | None:
        size = len(data)
        if not offset and size <= FULL and not self._long_writes:
            return self._handle(number, bytes(data), size, flags)
        whole = self._long_writes.add(offset, bytes(data), partial(self._check, flags))
        if whole is not None:
            return self._handle(number, whole, size, flags, started=offset > 0)
        self.kernel.wrote(number, size)
        return None

    def _check(self, flags: int, data: bytes, _total: int | None) -> None:
        """Raises OSError if the beginning of a message shows that it must be refused."""
        if WORD.unpack_from(data)[0] != MESSAGE:
            raise OSError(EMSGSIZE, "the write is too long: only a message may be that long")
        self._exchange.write(self.client, data)
        if not self._bridge.check() and flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "the queue to the bus is full")

    def _handle(self, number: int, data: bytes, size: int, flags: int, *, started: bool = False) -> Continuation | None:
        """Handle a whole write. `size` is the answer for a message. `started`: check() has found room for it before."""
        length, channel = self._exchange.write(self.client, data)
        if channel < 0:
            if self.client in self._exchange.waiting and self._exchange.ready(self.client):
                self.arrived()  # the buffer has messages for a new subscription
            self.kernel.wrote(number, length)
            return None
        if not self._bridge.check():
            if not flags & os.O_NONBLOCK:
                return self._publish_later(number, channel, data[HEAD:], size)
            if not started:
                raise OSError(EAGAIN, "the queue to the bus is full")
        self._publish(channel, data[HEAD:], number, size)
        return None

    def _publish(self, channel: int, payload: bytes, number: int = 0, size: int = 0) -> None:
        """Publish a message. The answer to the write request goes first, so that the writer can continue."""
        client = self.client.number
        serno, waiting = self._exchange.publish(channel, client, payload)
        if number:
            self.kernel.wrote(number, size)
        if waiting:
            self._node.wake(waiting)
        self._bridge.publish(self._exchange.registry.names[channel], payload, serno, client)

    async def _publish_later(self, number: int, channel: int, payload: bytes, size: int) -> None:
        await self._bridge.room()
        self._bridge.check()
        self._publish(channel, payload, number, size)

    def _completed_late(self, data: bytes) -> None:
        """Publish a long write that has turned out to be whole; the writer has got its answer already."""
        try:
            _, channel = self._exchange.write(self.client, data)
            self._bridge.check()
            self._publish(channel, data[HEAD:])
        except OSError as error:
            self._bridge.unpublished += 1
            log.warning("a message of %d bytes is lost after its write has returned: %s", len(data), error)

    def _dropped(self, size: int) -> None:
        self._bridge.unpublished += 1
        log.warning("%d bytes of a message are dropped: the rest of the message was not written", size)

    def flush(self, number: int) -> None:
        self._long_writes.used()
        self.kernel.data(number)

    # Reading.

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self._long_writes:
            self._long_writes.used()
        blocks = self._exchange.take(self.client, size, FULL)
        if blocks:
            self.kernel.blocks(number, blocks)
        elif offset:
            self.kernel.data(number)  # a previous part of the same read has returned data
        elif flags & os.O_NONBLOCK:
            self.kernel.fail(number, EAGAIN)
        elif self._empty_reads:
            self.kernel.data(number)
        else:
            self._reads.append((number, size))
            self._exchange.waiting.add(self.client)
            self.kernel.wait(number, self._interrupted)

    def _interrupted(self, number: int) -> None:
        self._reads = deque(read for read in self._reads if read[0] != number)

    def poll(self, key: int, flags: int) -> int:
        if self._long_writes:
            self._long_writes.used()
        return super().poll(key, flags)

    def ready(self) -> bool:
        return self._exchange.ready(self.client)

    def watch(self) -> None:
        self._exchange.waiting.add(self.client)

    def arrived(self) -> None:
        """The client has a message: answer its waiting reads and its polls."""
        reads = self._reads
        while reads:
            number, size = reads[0]
            try:
                blocks = self._exchange.take(self.client, size, FULL)
            except OSError as error:
                reads.popleft()
                self.kernel.fail(number, error.errno or EINVAL)
                continue
            if not blocks:
                return
            reads.popleft()
            self.kernel.blocks(number, blocks)
        self._exchange.waiting.discard(self.client)
        self.wake()

    def close(self) -> None:
        self._long_writes.close()
        self._node.closed(self.client)
