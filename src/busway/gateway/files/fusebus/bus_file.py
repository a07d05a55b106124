"""The file `fusebus`: each open file is a client, writes are commands and messages, reads give messages. A driver."""

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
from busway.gateway.files.nodes import File, Later, Node

log = logging.getLogger("busway.gateway")


class BusNode(Node):
    """`fusebus` in its folder."""

    def __init__(self, kernel: Kernel, exchange: Exchange, bridge: Bridge, settings: Mount) -> None:
        self._kernel = kernel
        self._exchange = exchange
        self._bridge = bridge
        self._settings = settings
        self._files: dict[Client, BusFile] = {}
        bridge.came = self.wake

    @property
    def size(self) -> int:
        """As long as a write can be. Behind the end of a file the kernel lets nobody write while another one waits for room."""
        return min(self._settings.max_message + HEAD, FULL)

    def open(self, flags: int) -> File:
        del flags
        client = self._exchange.open()
        file = self._files[client] = BusFile(self, client, self._kernel, self._exchange, self._bridge, self._settings)
        return file

    def left(self, client: Client) -> None:
        """It has closed the file."""
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
        """There is something for these."""
        for client in clients:
            self._files[client].arrived()

    async def settle(self) -> None:
        """Return when no file holds a write of which it is not known yet whether it is whole, or after a while."""
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
    """One client. A read that finds nothing waits, unless the file is non-blocking or the mount has empty reads."""

    # As a stream a file has no position: every read and write begins at offset 0, and is no other's turn.
    flags = DIRECT_IO | STREAM | PARALLEL

    def __init__(
        self, node: BusNode, client: Client, kernel: Kernel, exchange: Exchange, bridge: Bridge, settings: Mount
    ) -> None:
        super().__init__(kernel)
        self.client = client
        self._node = node
        self._exchange = exchange
        self._bridge = bridge
        self._gathering = LongWrites(kernel, settings.max_message + HEAD, self._late, self._dropped)
        self._empty_reads = settings.empty_reads
        self._reads: deque[tuple[int, int]] = deque()
        """Reads that wait: number and size."""

    # Writing.

    @property
    def holds(self) -> bool:
        """Whether a part of a write is here, and not its rest."""
        return bool(self._gathering)

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Later | None:
        size = len(data)
        if not offset and size <= FULL and not self._gathering:
            return self._written(number, bytes(data), size, flags)
        whole = self._gathering.add(offset, bytes(data), partial(self._check, flags))
        if whole is not None:
            return self._written(number, whole, size, flags, begun=offset > 0)
        self.kernel.wrote(number, size)
        return None

    def _check(self, flags: int, data: bytes, _total: int | None) -> None:
        """Tell all that can be wrong with a message while nothing of it has been taken."""
        if WORD.unpack_from(data)[0] != MESSAGE:
            raise OSError(EMSGSIZE, "only a message is that long")
        self._exchange.write(self.client, data)
        if not self._bridge.check() and flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "the bus has no room")

    def _written(self, number: int, data: bytes, size: int, flags: int, *, begun: bool = False) -> Later | None:
        """A whole write; `size` is what to tell of it if it is a message. For one that was begun before there was room then."""
        told, channel = self._exchange.write(self.client, data)
        if channel < 0:
            if self.client in self._exchange.waiting and self._exchange.ready(self.client):
                self.arrived()  # what it has subscribed to is there already
            self.kernel.wrote(number, told)
            return None
        if not self._bridge.check():
            if not flags & os.O_NONBLOCK:
                return self._publish_later(number, channel, data[HEAD:], size)
            if not begun:
                raise OSError(EAGAIN, "the bus has no room")
        self._publish(channel, data[HEAD:], number, size)
        return None

    def _publish(self, channel: int, payload: bytes, number: int = 0, size: int = 0) -> None:
        """Publish it. A request that waits for that is answered first, so that who has written can go on meanwhile."""
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

    def _late(self, data: bytes) -> None:
        """It turns out that this was a whole message; who wrote it was told that it is written."""
        try:
            _, channel = self._exchange.write(self.client, data)
            self._bridge.check()
            self._publish(channel, data[HEAD:])
        except OSError as error:
            self._bridge.unpublished += 1
            log.warning("a message of %d bytes that was written in pieces is lost: %s", len(data), error)

    def _dropped(self, size: int) -> None:
        self._bridge.unpublished += 1
        log.warning("%d bytes of a longer message are dropped: its rest was not written", size)

    def flush(self, number: int) -> None:
        self._gathering.used()
        self.kernel.data(number)

    # Reading.

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self._gathering:
            self._gathering.used()
        blocks = self._exchange.take(self.client, size, FULL)
        if blocks:
            self.kernel.blocks(number, blocks)
        elif offset:
            self.kernel.data(number)  # the rest of a read that has been given something
        elif flags & os.O_NONBLOCK:
            self.kernel.fail(number, EAGAIN)
        elif self._empty_reads:
            self.kernel.data(number)
        else:
            self._reads.append((number, size))
            self._exchange.waiting.add(self.client)
            self.kernel.wait(number, self._interrupted)

    def _interrupted(self, number: int) -> None:
        self._reads = deque(one for one in self._reads if one[0] != number)

    def poll(self, key: int, flags: int) -> int:
        if self._gathering:
            self._gathering.used()
        return super().poll(key, flags)

    def ready(self) -> bool:
        return self._exchange.ready(self.client)

    def watch(self) -> None:
        self._exchange.waiting.add(self.client)

    def arrived(self) -> None:
        """There is something to read."""
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
        self._gathering.close()
        self._node.left(self.client)
