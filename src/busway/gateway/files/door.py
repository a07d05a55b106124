"""The file door: mounts a bus on a folder, serves its files, and unmounts it. A driver.

`busway mount` and `busway fusebus` create it. It is a client of a bus in the same process or on any host.
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
from busway.gateway.files.nodes import FixedFolder, Folder, Node, TextNode
from busway.gateway.files.readme import readme
from busway.gateway.files.service_files import Services
from busway.gateway.files.stream_files import StreamsFolder
from busway.gateway.files.topics import subscriptions
from busway.gateway.files.topics.subscriptions import TopicSubscriptions
from busway.gateway.files.topics.topic_files import Topics
from busway.gateway.files.topics.tree import Paths

log = logging.getLogger("busway.gateway")

Connect: TypeAlias = Callable[[str], Bus]
"""Creates a client of the bus with this name."""


class FileDoor:
    """A bus mounted on a folder, from open() to close(); also an async context manager."""

    kind = "fuse"

    def __init__(self, folder: str | Path, connect: Connect, settings: Mount | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.settings = settings or Mount()
        self.bus = connect("fusebus")
        # A second client, so that messages written to a topic file reach its channel, which ignores its own client.
        self._files_bus = None if self.settings.documented else connect("files")
        self.exchange = Exchange(self.settings)
        self.repaired = False
        """Whether open() has removed the mount of a killed process."""
        self._closing = False
        self._kernel: Kernel | None = None
        self._bridge: Bridge | None = None
        self._files: FileSystem | None = None
        self._fusebus: BusNode | None = None

    @property
    def _buses(self) -> list[Bus]:
        return [self.bus] if self._files_bus is None else [self.bus, self._files_bus]

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def ended(self) -> asyncio.Event:
        """Set when the folder is unmounted."""
        assert self._kernel is not None
        return self._kernel.ended

    async def open(self) -> Self:
        """Connect and mount. Raises BusError, for example MountFailed."""
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
            assert self._files_bus is not None
            source = TopicSubscriptions(self._files_bus, self.settings)
            paths = Paths()
            channels.registered = paths.add
            names = {
                "README": TextNode(kernel, readme(self.settings, LONGEST_NAME)),
                **names,
                "json": Topics(kernel, source, paths, subscriptions.json).folder,
                "services": Services(kernel, source).folder,
                "streams": StreamsFolder(kernel, self._files_bus, self.settings.listed),
                "topics": Topics(kernel, source, paths, subscriptions.text).folder,
            }
        return FixedFolder(self.figures, **names)

    async def close(self, seconds: float = 5.0) -> None:
        """Unmount, publish the queued messages within `seconds`, and disconnect."""
        kernel, bridge = self._kernel, self._bridge
        if kernel is None or bridge is None or self._closing:
            return
        self._closing = True
        if not kernel.ended.is_set():
            try:
                # In a thread, because unmounting may send requests to the mount, which this loop must answer.
                await asyncio.to_thread(mount.unmount, self.folder)
            except MountFailed as error:
                log.warning("%s", error)
        if self._fusebus is not None:
            await self._fusebus.wait_for_writes()
        kernel.stop()
        try:
            async with asyncio.timeout(seconds):
                await bridge.close()
        except TimeoutError:
            log.warning("some messages written to %s were not published within %g s and are lost", self.folder, seconds)
        await asyncio.gather(*(bus.drain(max(seconds, 0.1)) for bus in self._buses))

    def figures(self) -> dict[str, Any]:
        """Its counters and its numbers of files, channels and clients."""
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
