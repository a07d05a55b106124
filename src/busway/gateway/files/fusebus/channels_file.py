"""The file `channels`: shows the channels of `fusebus`, one name per line, and registers written names. A driver.

The number of a channel is that of its line. `door.py` adds the file to a mount.
"""

from collections.abc import Callable

from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.exchange import Exchange
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.nodes import Continuation, File, Node


class ChannelsNode(Node):
    """The file `channels` in its folder."""

    def __init__(self, kernel: Kernel, exchange: Exchange, bridge: Bridge) -> None:
        self._kernel = kernel
        self.exchange = exchange
        self.bridge = bridge
        self.files: set[ChannelsFile] = set()
        self.registered: Callable[[str], None] = lambda _name: None
        """Called with the name of each new channel."""

    @property
    def size(self) -> int:
        return len(self.exchange.registry.text)

    def open(self, flags: int) -> File:
        del flags
        file = ChannelsFile(self, self._kernel)
        self.files.add(file)
        return file

    def attributes(self) -> dict[str, bytes]:
        return {"busway.channels": str(len(self.exchange.registry)).encode()}

    def register(self, names: list[str]) -> None:
        """Register names whose subscriptions have started, and wake programs that poll the file."""
        before = len(self.exchange.registry)
        self.exchange.register(names)
        if len(self.exchange.registry) > before:
            for file in list(self.files):
                file.wake()
        self.bridge.registered(names)
        for name in names:
            self.registered(name)


class ChannelsFile(File):
    """The open file `channels`. It is readable if names were added since the last read."""

    def __init__(self, node: ChannelsNode, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._node = node
        self._seen = 0

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        del flags
        data = self._node.exchange.registry.text[offset : offset + size]
        self._seen = max(self._seen, offset + len(data))
        self.kernel.data(number, data)

    def ready(self) -> bool:
        return self._seen < self._node.size

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Continuation | None:
        """Register the names in the lines, all of them or none. The offset is ignored: names go to the end."""
        del offset, flags
        names = self._node.exchange.registry.unknown(bytes(data))
        if names:
            return self._register(number, names, len(data))
        self.kernel.wrote(number, len(data))
        return None

    async def _register(self, number: int, names: list[str], size: int) -> None:
        """Subscribe and register, so that the channel gets every message published after the write returns."""
        self._node.bridge.check()
        try:
            await self._node.bridge.follow(names)
            self._node.exchange.registry.room(names)
        except BaseException:
            self._node.bridge.unfollow(names)
            raise
        self._node.register(names)
        self.kernel.wrote(number, size)

    def close(self) -> None:
        self._node.files.discard(self)
