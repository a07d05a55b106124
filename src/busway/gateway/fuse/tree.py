"""Folders of topics, as every folder is: a file has to be made before it is there, and so has a folder.

But for names with %XX, which are always there: they can't be those of folders.
"""

from collections.abc import Callable, Iterable
from errno import EINVAL, EISDIR, ENOENT, ENOTDIR
from weakref import WeakValueDictionary

from busway.gateway.fuse import names
from busway.gateway.fuse.nodes import Folder, Node
from busway.gateway.fuse.paths import Paths


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
