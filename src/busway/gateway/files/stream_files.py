"""The folder `streams`: a folder for each stream, and in it a file for each stored message, to be read only. A driver."""

from collections.abc import Coroutine, Iterable
from errno import EACCES, ENOENT
from os import O_ACCMODE, O_RDONLY
from typing import Any
from weakref import WeakValueDictionary

from busway.client.bus import Bus
from busway.errors import BusError, Code, Rejected
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.nodes import File, Fixture, Folder, Node
from busway.gateway.files.topics.subscriptions import told
from busway.gateway.files.topics.topic_files import shown
from busway.message import Message


class StreamsFolder(Folder):
    """All streams of the broker."""

    read_only = True

    def __init__(self, kernel: Kernel, bus: Bus, listed: int) -> None:
        self._kernel = kernel
        self._bus = bus
        self._listed = listed
        self._folders: WeakValueDictionary[str, StreamFolder] = WeakValueDictionary()

    async def find(self, name: str) -> Node:
        if not name.isprintable():  # nor UTF-8, maybe
            raise OSError(ENOENT, name)
        try:
            await self._bus.stream(name)
        except Rejected as error:
            raise OSError(ENOENT, name) if error.code == Code.NO_STREAM else told(error) from None
        except BusError as error:
            raise told(error) from error
        return self._folder(name)

    async def list(self) -> Iterable[tuple[str, Node]]:
        try:
            streams = await self._bus.streams()
        except BusError as error:
            raise told(error) from error
        return [(one.name, self._folder(one.name)) for one in streams if "/" not in one.name]

    def _folder(self, name: str) -> "StreamFolder":
        made = self._folders.get(name)
        if made is None:
            made = self._folders[name] = StreamFolder(self._kernel, self._bus, name, self._listed)
        return made


class StreamFolder(Folder):
    """One stream: the offset of each message is its name. The newest are listed; all can be opened."""

    read_only = True

    def __init__(self, kernel: Kernel, bus: Bus, name: str, listed: int) -> None:
        self._kernel = kernel
        self._bus = bus
        self._name = name
        self._listed = listed
        self._files: WeakValueDictionary[int, Node] = WeakValueDictionary()
        self._listing = Node()

    async def find(self, name: str) -> Node:
        if not (name.isascii() and name.isdigit()):
            raise OSError(ENOENT, name)
        offset = int(name)
        found = self._files.get(offset)
        if found is None:
            found = self._files[offset] = await self._read(offset)
        return found

    async def _read(self, offset: int) -> Node:
        try:
            stream = await self._bus.stream(self._name)
            async for messages in stream.read(offset, offset + 1):
                return StoredNode(self._kernel, messages[0])
        except Rejected as error:
            raise OSError(ENOENT, self._name) if error.code == Code.NO_STREAM else told(error) from None
        except BusError as error:
            raise told(error) from error
        raise OSError(ENOENT, f"{self._name} has no message {offset}")

    async def list(self) -> Iterable[tuple[str, Node]]:
        try:
            info = await (await self._bus.stream(self._name)).info()
        except BusError as error:
            raise told(error) from error
        first = max(info.first, info.next - self._listed)
        return [(f"{offset:020}", self._listing) for offset in range(first, info.next)]


class StoredNode(Node):
    """A stored message."""

    read_only = True

    def __init__(self, kernel: Kernel, message: Message) -> None:
        self._kernel = kernel
        self._message = message

    @property
    def size(self) -> int:
        return len(self._message.payload)

    @property
    def changed(self) -> int:
        return self._message.time_ns

    def open(self, flags: int) -> "File | Coroutine[Any, Any, File]":
        if flags & O_ACCMODE != O_RDONLY:
            raise OSError(EACCES, "what is stored can only be read")
        return Fixture(self._kernel, self._message.payload)

    def attributes(self) -> dict[str, bytes]:
        message = self._message
        made = {
            "topic": message.topic,
            "time": message.time.isoformat(),
            "sender": message.sender,
            "id": message.id,
            "position": str(message.position),
            "offset": str(message.offset),
            "sequence": str(message.sequence),
        }
        fields = {f"busway.field.{name}": shown(value) for name, value in message.fields.items()}
        return {f"busway.{name}": value.encode() for name, value in made.items()} | fields
