"""The file `channels`: a name in each line, whose number is that of its line; names that are written are registered. A driver."""

from collections.abc import Callable

from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.exchange import Exchange
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.nodes import File, Later, Node


class ChannelsNode(Node):
    """`channels` in its folder."""

    def __init__(self, kernel: Kernel, exchange: Exchange, bridge: Bridge) -> None:
        self._kernel = kernel
        self.exchange = exchange
        self.bridge = bridge
        self.files: set[ChannelsFile] = set()
        self.registered: Callable[[str], None] = lambda _name: None
        """Called with each new one."""

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
        """These are channels now, which the bus knows of; whoever polls is told."""
        before = len(self.exchange.registry)
        self.exchange.register(names)
        if len(self.exchange.registry) > before:
            for file in list(self.files):
                file.wake()
        self.bridge.registered(names)
        for name in names:
            self.registered(name)


class ChannelsFile(File):
    """An open one. It is readable when something was added since it was read."""

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

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Later | None:
        """Names in lines, all of them or none. The offset says nothing: they come to the end."""
        del offset, flags
        names = self._node.exchange.registry.unknown(bytes(data))
        if names:
            return self._register(number, names, len(data))
        self.kernel.wrote(number, len(data))
        return None

    async def _register(self, number: int, names: list[str], size: int) -> None:
        """What is published to the bus is to come from the moment on in which the write returns."""
        self._node.bridge.check()
        try:
            await self._node.bridge.follow(names)
            self._node.exchange.registry.room(names)
        except BaseException:
            self._node.bridge.leave(names)
            raise
        self._node.register(names)
        self.kernel.wrote(number, size)

    def close(self) -> None:
        self._node.files.discard(self)
