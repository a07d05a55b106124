"""Which names of a tree of topics are known, and which of them are folders. A machine.

Folders are made (mkdir), and come with topics that lie in them. Topics are there once they are used.
"""

from collections.abc import Iterable
from errno import EEXIST, ENOENT, ENOSPC, ENOTEMPTY

_MOST = 65_536


class Paths:
    """Folders by their paths, the root's is empty; what is in a folder: names of topics, and of folders."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {"": {}}
        self._folders: dict[str, dict[str, None]] = {"": {}}
        self._count = 0

    def add(self, topic: str) -> None:
        """A topic is used: it is listed, and the folders in which it lies are there. OSError: there are too many."""
        folder, name = _split(topic)
        self._make(folder)
        if name not in self._topics[folder]:
            self._grow()
            self._topics[folder][name] = None

    def make(self, path: str) -> None:
        """Make a folder in one that is there. OSError."""
        if path in self._folders:
            raise OSError(EEXIST, path)
        if _split(path)[0] not in self._folders:
            raise OSError(ENOENT, path)
        self._make(path)

    def remove(self, path: str) -> None:
        """Remove a folder. OSError: it is not there, or not empty."""
        above, name = _split(path)
        if path not in self._folders or not path:
            raise OSError(ENOENT, path)
        if self._folders[path] or self._topics[path]:
            raise OSError(ENOTEMPTY, path)
        del self._folders[path], self._topics[path], self._folders[above][name]
        self._count -= 1

    def leave(self, topic: str) -> None:
        """A topic is not listed any more. OSError: it is not."""
        above, name = _split(topic)
        if name not in self._topics.get(above, {}):
            raise OSError(ENOENT, topic)
        del self._topics[above][name]
        self._count -= 1

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def has(self, topic: str) -> bool:
        """Whether a topic is used."""
        folder, name = _split(topic)
        return name in self._topics.get(folder, ())

    def folders(self, path: str) -> Iterable[str]:
        """Names of the folders in a folder."""
        return list(self._folders.get(path, ()))

    def topics(self, path: str) -> Iterable[str]:
        """Names of the topics in it."""
        return list(self._topics.get(path, ()))

    def _make(self, path: str) -> None:
        if path in self._folders:
            return
        above, name = _split(path)
        self._make(above)
        self._grow()
        self._folders[above][name] = None
        self._folders[path] = {}
        self._topics[path] = {}

    def _grow(self) -> None:
        if self._count >= _MOST:
            raise OSError(ENOSPC, f"{_MOST} names are the limit")
        self._count += 1


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name
