"""The file door: a mount from its beginning to its end. A driver.

It is a client of a bus, of one in the same process or anywhere else: what it needs is a way to connect.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from busway.client.bus import Bus
from busway.errors import MountFailed
from busway.gateway.files.config import LONGEST_NAME, Mount
from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.bus_file import BusNode
from busway.gateway.files.fusebus.channels_file import ChannelsNode
from busway.gateway.files.fusebus.exchange import Exchange
from busway.gateway.files.kernel import mount
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.filesystem import FileSystem
from busway.gateway.files.nodes import Fixed, Folder, Node, Text
from busway.gateway.files.readme import readme
from busway.gateway.files.service_files import Services
from busway.gateway.files.stream_files import StreamsFolder
from busway.gateway.files.topics import subscriptions
from busway.gateway.files.topics.subscriptions import TopicSubscriptions
from busway.gateway.files.topics.topic_files import Topics
from busway.gateway.files.topics.tree import Paths

log = logging.getLogger("busway.gateway")

Connect: TypeAlias = Callable[[str], Bus]
"""Makes a client of the bus that gives itself this name."""


class FileDoor:
    """A folder in which a bus is mounted, from open() (or entering it) to close() (or leaving it)."""

    kind = "fuse"

    def __init__(self, folder: str | Path, connect: Connect, settings: Mount | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.settings = settings or Mount()
        self.bus = connect("fusebus")
        # Apart from the other one, so that what is written to the file of a topic gets to its channel, too.
        self._others = None if self.settings.documented else connect("files")
        self.exchange = Exchange(self.settings)
        self.repaired = False
        """Whether a mount that a killed process had left was removed."""
        self._closing = False
        self._kernel: Kernel | None = None
        self._bridge: Bridge | None = None
        self._files: FileSystem | None = None
        self._fusebus: BusNode | None = None

    @property
    def _buses(self) -> list[Bus]:
        return [self.bus] if self._others is None else [self.bus, self._others]

    @property
    def address(self) -> str:
        """Where it is reached."""
        return str(self.folder)

    @property
    def ended(self) -> asyncio.Event:
        """Set when somebody has unmounted it."""
        assert self._kernel is not None
        return self._kernel.ended

    async def open(self) -> Self:
        """Connect and mount. BusError."""
        self.repaired = mount.prepare(self.folder)
        try:
            for bus in self._buses:
                await bus.open()
            self._kernel = kernel = Kernel(mount.mount(self.folder, self.settings), self.settings.request)
        except BaseException:
            for bus in self._buses:
                await bus.close()
            raise
        self._bridge = bridge = Bridge(self.bus, self.exchange, self.settings)
        self._files = FileSystem(kernel, self._root(kernel, bridge), self.settings, started=time.time_ns())
        bridge.start()
        kernel.start(self._files.table())
        log.info("the bus is mounted on %s", self.folder)
        return self

    def _root(self, kernel: Kernel, bridge: Bridge) -> Folder:
        channels = ChannelsNode(kernel, self.exchange, bridge)
        self._fusebus = BusNode(kernel, self.exchange, bridge, self.settings)
        names: dict[str, Node] = {"channels": channels, "fusebus": self._fusebus}
        if not self.settings.documented:
            assert self._others is not None
            source = TopicSubscriptions(self._others, self.settings)
            paths = Paths()
            channels.registered = paths.add
            names = {
                "README": Text(kernel, readme(self.settings, LONGEST_NAME)),
                **names,
                "json": Topics(kernel, source, paths, subscriptions.json).folder,
                "services": Services(kernel, source).folder,
                "streams": StreamsFolder(kernel, self._others, self.settings.listed),
                "topics": Topics(kernel, source, paths, subscriptions.text).folder,
            }
        return Fixed(self.figures, **names)

    async def close(self, seconds: float = 5.0) -> None:
        """Unmount, publish what waits within so many seconds, and leave the bus."""
        kernel, bridge = self._kernel, self._bridge
        if kernel is None or bridge is None or self._closing:
            return
        self._closing = True
        if not kernel.ended.is_set():
            try:
                # Elsewhere, as whatever unmounts may look at it first, which is to be answered here.
                await asyncio.to_thread(mount.unmount, self.folder)
            except MountFailed as error:
                log.warning("%s", error)
        if self._fusebus is not None:
            await self._fusebus.settle()
        kernel.stop()
        try:
            async with asyncio.timeout(seconds):
                await bridge.close()
        except TimeoutError:
            log.warning("not all that was written to %s was published within %g s", self.folder, seconds)
        await asyncio.gather(*(bus.drain(max(seconds, 0.1)) for bus in self._buses))

    def figures(self) -> dict[str, Any]:
        """What it has counted, and who is there."""
        kernel, files, bridge = self._kernel, self._files, self._bridge
        assert kernel is not None
        assert files is not None
        assert bridge is not None
        return {
            "folder": str(self.folder),
            "requests": kernel.requests,
            "refused": kernel.refused,
            "failed": kernel.failed,
            "files": len(files.files),
            "channels": len(self.exchange.registry),
            "clients": len(self.exchange.clients),
            "published": self.exchange.published,
            "received": self.exchange.received,
            "lost": self.exchange.lost,
            "kept": self.exchange.store.next - self.exchange.store.oldest,
            "too_long": bridge.too_long,
            "unpublished": bridge.unpublished,
        }

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
