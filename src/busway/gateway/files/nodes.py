"""Files and folders as the kernel sees them: nodes that can be found, looked at and opened, and files that are open.

The bases only; what each kind of file does is in a module of its own.
"""

# ruff: noqa: ARG002, the bases say what there can be

import stat
from collections.abc import Callable, Coroutine, Iterable
from errno import EACCES, EINVAL, ENODATA, ENOENT, ENOTDIR, ENOTSUP
from os import O_ACCMODE, O_RDONLY
from select import POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM
from typing import Any, Final, TypeAlias

from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import DIRECT_IO, SCHEDULE_NOTIFY

Later: TypeAlias = Coroutine[Any, Any, None]
"""What is left to do when the broker has to be asked."""

READABLE: Final = POLLIN | POLLRDNORM
WRITABLE: Final = POLLOUT | POLLWRNORM


class Node:
    """A file or a folder. Its number is given to it when the kernel finds it."""

    number = 0
    found = 0
    """How often the kernel has found it and not forgotten."""
    kind = stat.S_IFREG
    read_only = False

    @property
    def size(self) -> int:
        return 0

    @property
    def changed(self) -> int:
        """When, in nanoseconds since 1970; 0: with the mount."""
        return 0

    def open(self, flags: int) -> "File | Coroutine[Any, Any, File]":
        """An open file. OSError: it can't be opened."""
        raise OSError(EACCES, "not to be opened")

    def touch(self) -> Later | None:
        """Its times are to be set, or its length: it is to be there, at least."""
        return None

    def attributes(self) -> dict[str, bytes]:
        """Its extended attributes, without `user.`."""
        return {}

    def set_attribute(self, name: str, value: bytes | None) -> None:
        """Change one, or remove it. OSError: it can't be."""
        raise OSError(ENOTSUP if value is not None else ENODATA, name)


class Folder(Node):
    """What has names in it."""

    kind = stat.S_IFDIR

    def find(self, name: str) -> "Node | Coroutine[Any, Any, Node]":
        """The node of a name. OSError: there is none."""
        raise OSError(ENOENT, name)

    def list(self) -> "Iterable[tuple[str, Node]] | Coroutine[Any, Any, Iterable[tuple[str, Node]]]":
        """All names that are listed."""
        return ()

    def make(self, name: str) -> "Node":
        """A folder in it. OSError: there can be none."""
        raise OSError(EACCES, name)

    def create(self, name: str) -> "Node":
        """A file in it. OSError: there can be none."""
        raise OSError(EACCES, name)

    def remove(self, name: str) -> None:
        """Remove a folder in it. OSError: it can't be."""
        raise OSError(EACCES, name)

    def unlink(self, name: str) -> None:
        """Remove a file in it. OSError: it can't be."""
        raise OSError(EACCES, name)


class Fixed(Folder):
    """A folder whose names never change."""

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
    """An open file. Each call is answered by the kernel's number, now or later."""

    flags = DIRECT_IO

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._key: int | None = None

    def read(self, number: int, offset: int, size: int, flags: int) -> Later | None:
        """Give what is there."""
        raise OSError(EINVAL, "not to be read")

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Later | None:
        """Take it. The data is valid during the call only."""
        raise OSError(EINVAL, "not to be written")

    def flush(self, number: int) -> Later | None:
        """A descriptor of it is closed."""
        self.kernel.data(number)
        return None

    def ready(self) -> bool:
        """Whether a read would give something at once."""
        return True

    def poll(self, key: int, flags: int) -> int:
        """What can be done now, and whom to wake when that changes."""
        if flags & SCHEDULE_NOTIFY:
            self._key = key
            self.watch()
        return WRITABLE | (READABLE if self.ready() else 0)

    def watch(self) -> None:
        """Somebody polls: wake() is due when there is something to read."""

    def wake(self) -> None:
        """Whoever polls looks again."""
        if self._key is not None:
            key, self._key = self._key, None
            self.kernel.wake(key)

    def close(self) -> Later | None:
        """Nobody has it open any more."""
        return None


class Text(Node):
    """A file to read that never changes."""

    read_only = True

    def __init__(self, kernel: Kernel, text: str) -> None:
        self._kernel = kernel
        self._data = text.encode()

    @property
    def size(self) -> int:
        return len(self._data)

    def open(self, flags: int) -> File:
        if flags & O_ACCMODE != O_RDONLY:  # the permissions are nothing to root
            raise OSError(EACCES, "to be read only")
        return Fixture(self._kernel, self._data)


class Fixture(File):
    """An open file with contents that don't change."""

    def __init__(self, kernel: Kernel, data: bytes) -> None:
        super().__init__(kernel)
        self._data = data

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        del flags
        self.kernel.data(number, self._data[offset : offset + size])


def folder(node: Node) -> Folder:
    """A node as a folder. OSError: it is none."""
    if not isinstance(node, Folder):
        raise OSError(ENOTDIR, "no folder")
    return node
