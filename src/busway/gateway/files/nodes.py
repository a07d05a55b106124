"""Base classes of files and folders: nodes, which the kernel looks up and opens, and open files.

`filesystem.py` calls their methods. Each kind of file derives from them in a module of its own.
"""

# ruff: noqa: ARG002, the bases declare parameters for derived classes

import stat
from collections.abc import Callable, Coroutine, Iterable
from errno import EACCES, EINVAL, ENODATA, ENOENT, ENOTDIR, ENOTSUP
from os import O_ACCMODE, O_RDONLY
from select import POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM
from typing import Any, Final, TypeAlias

from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import DIRECT_IO, SCHEDULE_NOTIFY

Continuation: TypeAlias = Coroutine[Any, Any, None]
"""The rest of a request that must wait for the broker."""

READABLE: Final = POLLIN | POLLRDNORM
WRITABLE: Final = POLLOUT | POLLWRNORM


class Node:
    """A file or a folder. It gets its number at the first lookup by the kernel."""

    number = 0
    lookups = 0
    """Lookups by the kernel that it has not forgotten."""
    kind = stat.S_IFREG
    read_only = False

    @property
    def size(self) -> int:
        """Size in bytes."""
        return 0

    @property
    def changed(self) -> int:
        """Time of the last change in nanoseconds since 1970; 0: the time of the mount."""
        return 0

    def open(self, flags: int) -> "File | Coroutine[Any, Any, File]":
        """Open the node. Raises OSError if that is not allowed."""
        raise OSError(EACCES, "this node can't be opened")

    def touch(self) -> Continuation | None:
        """A program sets the times or the length of the node, which must then exist."""
        return None

    def attributes(self) -> dict[str, bytes]:
        """The extended attributes, without the prefix `user.`."""
        return {}

    def set_attribute(self, name: str, value: bytes | None) -> None:
        """Set an extended attribute; None removes it. Raises OSError if that is not allowed."""
        raise OSError(ENOTSUP if value is not None else ENODATA, name)


class Folder(Node):
    """A node that contains named nodes."""

    kind = stat.S_IFDIR

    def find(self, name: str) -> "Node | Coroutine[Any, Any, Node]":
        """The node with a name. Raises OSError if there is none."""
        raise OSError(ENOENT, name)

    def list(self) -> "Iterable[tuple[str, Node]] | Coroutine[Any, Any, Iterable[tuple[str, Node]]]":
        """The listed names with their nodes."""
        return ()

    def make(self, name: str) -> "Node":
        """Create a folder. Raises OSError if that is not allowed."""
        raise OSError(EACCES, name)

    def create(self, name: str) -> "Node":
        """Create a file. Raises OSError if that is not allowed."""
        raise OSError(EACCES, name)

    def remove(self, name: str) -> None:
        """Remove a folder. Raises OSError if that is not allowed."""
        raise OSError(EACCES, name)

    def unlink(self, name: str) -> None:
        """Remove a file. Raises OSError if that is not allowed."""
        raise OSError(EACCES, name)


class FixedFolder(Folder):
    """A folder with constant names; its attributes are the figures of the mount."""

    def __init__(self, figures: Callable[[], dict[str, Any]], **names: Node) -> None:
        self._figures = figures
        self._names = names

    def attributes(self) -> dict[str, bytes]:
        return {f"busway.{name}": str(figure).encode() for name, figure in self._figures().items()}

    def find(self, name: str) -> Node:
        try:
            return self._names[name]
        except KeyError:
            raise OSError(ENOENT, name) from None

    def list(self) -> Iterable[tuple[str, Node]]:
        return self._names.items()


class File:
    """An open file. Each method answers the request `number` of the kernel, now or later."""

    flags = DIRECT_IO

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._key: int | None = None

    def read(self, number: int, offset: int, size: int, flags: int) -> Continuation | None:
        """Answer with data. Raises OSError."""
        raise OSError(EINVAL, "this file can't be read")

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Continuation | None:
        """Accept data, which is valid only during the call. Raises OSError."""
        raise OSError(EINVAL, "this file can't be written")

    def flush(self, number: int) -> Continuation | None:
        """A program closes a descriptor of the file."""
        self.kernel.data(number)
        return None

    def ready(self) -> bool:
        """Whether a read would return data at once."""
        return True

    def poll(self, key: int, flags: int) -> int:
        """The events that are possible now. Stores the key of a program that waits for a change."""
        if flags & SCHEDULE_NOTIFY:
            self._key = key
            self.watch()
        return WRITABLE | (READABLE if self.ready() else 0)

    def watch(self) -> None:
        """A program polls the file: the file must call wake() when it has data."""

    def wake(self) -> None:
        """Let the polling program check the file again."""
        if self._key is not None:
            key, self._key = self._key, None
            self.kernel.wake(key)

    def close(self) -> Continuation | None:
        """The last descriptor of the file is closed."""
        return None


class TextNode(Node):
    """A read-only file with constant text."""

    read_only = True

    def __init__(self, kernel: Kernel, text: str) -> None:
        self._kernel = kernel
        self._data = text.encode()

    @property
    def size(self) -> int:
        return len(self._data)

    def open(self, flags: int) -> File:
        if flags & O_ACCMODE != O_RDONLY:  # permissions do not stop root
            raise OSError(EACCES, "this file is read-only")
        return FixedFile(self._kernel, self._data)


class FixedFile(File):
    """An open file with constant content."""

    def __init__(self, kernel: Kernel, data: bytes) -> None:
        super().__init__(kernel)
        self._data = data

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        del flags
        self.kernel.data(number, self._data[offset : offset + size])


def folder(node: Node) -> Folder:
    """The node as a folder. Raises OSError if it is a file."""
    if not isinstance(node, Folder):
        raise OSError(ENOTDIR, "not a folder")
    return node
