"""The folder `streams`: a folder per stream with a read-only file per stored message. A driver that `door.py` uses."""

from collections.abc import Coroutine, Iterable
from errno import EACCES, ENOENT
from os import O_ACCMODE, O_RDONLY
from typing import Any
from weakref import WeakValueDictionary

from busway.client.bus import Bus
from busway.errors import BusError, Code, Rejected
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.nodes import File, FixedFile, Folder, Node
from busway.gateway.files.topics.subscriptions import os_error
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
        if not name.isprintable():  # such a name may not even be UTF-8
            raise OSError(ENOENT, name)
        try:
            await self._bus.stream(name)
        except Rejected as error:
            raise OSError(ENOENT, name) if error.code == Code.NO_STREAM else os_error(error) from None
        except BusError as error:
            raise os_error(error) from error
        return self._folder(name)

    async def list(self) -> Iterable[tuple[str, Node]]:
        try:
            streams = await self._bus.streams()
        except BusError as error:
            raise os_error(error) from error
        return [(stream.name, self._folder(stream.name)) for stream in streams if "/" not in stream.name]

    def _folder(self, name: str) -> "StreamFolder":
        node = self._folders.get(name)
        if node is None:
            node = self._folders[name] = StreamFolder(self._kernel, self._bus, name, self._listed)
        return node


class StreamFolder(Folder):
    """One stream. A file is named by the offset of its message; the newest are listed, and all can be opened."""

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
        node = self._files.get(offset)
        if node is None:
            node = self._files[offset] = await self._read(offset)
        return node

    async def _read(self, offset: int) -> Node:
        try:
            stream = await self._bus.stream(self._name)
            async for messages in stream.read(offset, offset + 1):
                return StoredNode(self._kernel, messages[0])
        except Rejected as error:
            raise OSError(ENOENT, self._name) if error.code == Code.NO_STREAM else os_error(error) from None
        except BusError as error:
            raise os_error(error) from error
        raise OSError(ENOENT, f"{self._name} has no message {offset}")

    async def list(self) -> Iterable[tuple[str, Node]]:
        try:
            info = await (await self._bus.stream(self._name)).info()
        except BusError as error:
            raise os_error(error) from error
        first = max(info.first, info.next - self._listed)
        return [(f"{offset:020}", self._listing) for offset in range(first, info.next)]


class StoredNode(Node):
    """The file of a stored message."""

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
            raise OSError(EACCES, "a stored message can't be changed: open the file for reading only")
        return FixedFile(self._kernel, self._message.payload)

    def attributes(self) -> dict[str, bytes]:
        message = self._message
        properties = {
            "topic": message.topic,
            "time": message.time.isoformat(),
            "sender": message.sender,
            "id": message.id,
            "position": str(message.position),
            "offset": str(message.offset),
            "sequence": str(message.sequence),
        }
        fields = {f"busway.field.{name}": shown(value) for name, value in message.fields.items()}
        return {f"busway.{name}": value.encode() for name, value in properties.items()} | fields
