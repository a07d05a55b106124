"""Folders of topics, as every folder is: a file has to be made before it is there, and so has a folder.

But for names with %XX, which are always there: they can't be those of folders.
"""

from collections.abc import Callable, Iterable
from errno import EEXIST, EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from weakref import WeakValueDictionary

from busway.gateway.files.nodes import Folder, Node
from busway.gateway.files.topics import names

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


class Tree:
    """The folders and files over some paths; a topic's file is made by a function."""

    def __init__(self, paths: Paths, make: Callable[[str], Node]) -> None:
        self.paths = paths
        self._make = make
        self.removed: Callable[[str], None] = lambda _topic: None
        """Called with a topic that is not to be listed any more."""
        # The kernel knows a node by its number, so a topic has to have the same one for as long as it is known.
        self._files: WeakValueDictionary[str, Node] = WeakValueDictionary()
        self._folders: WeakValueDictionary[str, TopicFolder] = WeakValueDictionary()

    def folder(self, path: str = "") -> "TopicFolder":
        made = self._folders.get(path)
        if made is None:
            made = self._folders[path] = TopicFolder(self, path)
        return made

    def file(self, topic: str) -> Node:
        made = self._files.get(topic)
        if made is None:
            made = self._files[topic] = self._make(topic)
        return made


class TopicFolder(Folder):
    """One of the folders."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree = tree
        self._path = path

    def find(self, name: str) -> Node:
        topic = names.topic_of(self._path, name)
        if names.is_escaped(name) or (self._tree.paths.has(topic) and not self._tree.paths.is_folder(topic)):
            return self._tree.file(topic)
        if self._tree.paths.is_folder(topic):
            return self._tree.folder(topic)
        raise OSError(ENOENT, name)

    def create(self, name: str) -> Node:
        """A file that is made is listed."""
        topic = names.topic_of(self._path, name)
        self._tree.paths.add(topic)
        return self._tree.file(topic)

    def list(self) -> Iterable[tuple[str, Node]]:
        paths = self._tree.paths
        below = f"{self._path}/" if self._path else ""
        folders = set(paths.folders(self._path))
        for one in folders:
            if (name := names.name_of(one)) is not None:
                yield name, self._tree.folder(below + one)
        for one in paths.topics(self._path):
            if (name := names.name_of(one, topic=one in folders)) is not None:
                yield name, self._tree.file(below + one)

    def make(self, name: str) -> Node:
        topic = names.topic_of(self._path, name)
        if names.is_escaped(name):
            raise OSError(EINVAL, "a name with %XX is that of a topic")
        self._tree.paths.make(topic)
        return self._tree.folder(topic)

    def remove(self, name: str) -> None:
        path = names.topic_of(self._path, name)
        if names.is_escaped(name) or not self._tree.paths.is_folder(path):
            self.find(name)  # which says so if there is nothing
            raise OSError(ENOTDIR, name)
        self._tree.paths.remove(path)

    def unlink(self, name: str) -> None:
        topic = names.topic_of(self._path, name)
        if not names.is_escaped(name) and self._tree.paths.is_folder(topic):
            raise OSError(EISDIR, name)
        self._tree.paths.leave(topic)
        self._tree.removed(topic)
