"""Folder tree of topics: files and folders exist once they are created, and names with %XX always exist.

`topic_files.py` and `service_files.py` build a `Tree` with the node class of their files.
"""

from collections.abc import Callable, Iterable
from errno import EEXIST, EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from weakref import WeakValueDictionary

from busway.gateway.files.nodes import Folder, Node
from busway.gateway.files.topics import names

_MOST = 65_536


class Paths:
    """The names of the topics and folders in each folder. The path of the root is empty."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {"": {}}
        self._folders: dict[str, dict[str, None]] = {"": {}}
        self._count = 0

    def add(self, topic: str) -> None:
        """Add a topic in use, and create its folders. Raises OSError if there are too many names."""
        folder, name = _split(topic)
        self._make(folder)
        if name not in self._topics[folder]:
            self._grow()
            self._topics[folder][name] = None

    def make(self, path: str) -> None:
        """Create a folder in an existing folder. Raises OSError."""
        if path in self._folders:
            raise OSError(EEXIST, path)
        if _split(path)[0] not in self._folders:
            raise OSError(ENOENT, path)
        self._make(path)

    def remove(self, path: str) -> None:
        """Remove a folder. Raises OSError if it does not exist or is not empty."""
        parent, name = _split(path)
        if path not in self._folders or not path:
            raise OSError(ENOENT, path)
        if self._folders[path] or self._topics[path]:
            raise OSError(ENOTEMPTY, path)
        del self._folders[path], self._topics[path], self._folders[parent][name]
        self._count -= 1

    def discard(self, topic: str) -> None:
        """Remove a topic. Raises OSError if it is not in use."""
        parent, name = _split(topic)
        if name not in self._topics.get(parent, {}):
            raise OSError(ENOENT, topic)
        del self._topics[parent][name]
        self._count -= 1

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder."""
        return path in self._folders

    def has(self, topic: str) -> bool:
        """Whether a topic is in use."""
        folder, name = _split(topic)
        return name in self._topics.get(folder, ())

    def folders(self, path: str) -> Iterable[str]:
        """Names of the folders in a folder."""
        return list(self._folders.get(path, ()))

    def topics(self, path: str) -> Iterable[str]:
        """Names of the topics in a folder."""
        return list(self._topics.get(path, ()))

    def _make(self, path: str) -> None:
        if path in self._folders:
            return
        parent, name = _split(path)
        self._make(parent)
        self._grow()
        self._folders[parent][name] = None
        self._folders[path] = {}
        self._topics[path] = {}

    def _grow(self) -> None:
        if self._count >= _MOST:
            raise OSError(ENOSPC, f"too many names: the limit is {_MOST}")
        self._count += 1


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


class Tree:
    """The folder and file nodes of some paths; `make` creates the node of a topic."""

    def __init__(self, paths: Paths, make: Callable[[str], Node]) -> None:
        self.paths = paths
        self._make = make
        self.removed: Callable[[str], None] = lambda _topic: None
        """Called with a topic after its removal."""
        # The kernel knows a node by its number, so a topic must have the same node as long as the kernel refers to it.
        self._files: WeakValueDictionary[str, Node] = WeakValueDictionary()
        self._folders: WeakValueDictionary[str, TopicFolder] = WeakValueDictionary()

    def folder(self, path: str = "") -> "TopicFolder":
        """The node of a folder."""
        node = self._folders.get(path)
        if node is None:
            node = self._folders[path] = TopicFolder(self, path)
        return node

    def file(self, topic: str) -> Node:
        """The node of a topic."""
        node = self._files.get(topic)
        if node is None:
            node = self._files[topic] = self._make(topic)
        return node


class TopicFolder(Folder):
    """A folder of the tree."""

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
        """Create the file of a topic, which is listed from then on."""
        topic = names.topic_of(self._path, name)
        self._tree.paths.add(topic)
        return self._tree.file(topic)

    def list(self) -> Iterable[tuple[str, Node]]:
        paths = self._tree.paths
        prefix = f"{self._path}/" if self._path else ""
        folders = set(paths.folders(self._path))
        for segment in folders:
            if (name := names.name_of(segment)) is not None:
                yield name, self._tree.folder(prefix + segment)
        for segment in paths.topics(self._path):
            if (name := names.name_of(segment, topic=segment in folders)) is not None:
                yield name, self._tree.file(prefix + segment)

    def make(self, name: str) -> Node:
        topic = names.topic_of(self._path, name)
        if names.is_escaped(name):
            raise OSError(EINVAL, "a folder can't have a name with %XX, which names a topic")
        self._tree.paths.make(topic)
        return self._tree.folder(topic)

    def remove(self, name: str) -> None:
        path = names.topic_of(self._path, name)
        if names.is_escaped(name) or not self._tree.paths.is_folder(path):
            self.find(name)  # raises ENOENT if the name does not exist
            raise OSError(ENOTDIR, name)
        self._tree.paths.remove(path)

    def unlink(self, name: str) -> None:
        topic = names.topic_of(self._path, name)
        if not names.is_escaped(name) and self._tree.paths.is_folder(topic):
            raise OSError(EISDIR, name)
        self._tree.paths.discard(topic)
        self._tree.removed(topic)
