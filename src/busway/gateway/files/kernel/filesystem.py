"""The file system of a mount: handlers for each request of the kernel, such as lookup, open, read, write and poll.

`device.py` calls the handlers. They find nodes by number and open files by handle, and call the methods of
`nodes.py`. A driver.
"""

import os
import stat
from collections.abc import Coroutine, Iterable
from errno import EBADF, EEXIST, EINVAL, EISDIR, ENODATA, EPERM, EPROTO, ERANGE, ESTALE
from inspect import iscoroutine
from typing import Any, Final

from busway.gateway.files.config import Mount
from busway.gateway.files.kernel import protocol
from busway.gateway.files.kernel.device import Handler, Kernel
from busway.gateway.files.kernel.protocol import Attributes, Op
from busway.gateway.files.nodes import Continuation, File, Folder, Node, folder

_PREFIX: Final = "user."
_READ: Final = protocol.READ.size
_TRANSFER: Final = protocol.TRANSFER.unpack_from


class FileSystem:
    """The nodes and the open files of one mount."""

    def __init__(self, kernel: Kernel, root: Folder, settings: Mount, *, started: int) -> None:
        self._kernel = kernel
        self._settings = settings
        self._started = started
        self._user, self._group = os.getuid(), os.getgid()
        root.number = protocol.ROOT
        self._nodes: dict[int, Node] = {protocol.ROOT: root}
        self._numbers = protocol.ROOT
        self.files: dict[int, File] = {}
        self._listings: dict[int, list[tuple[str, int, int]]] = {}
        self._handles = 0

    def table(self) -> dict[int, Handler]:
        """The handlers by operation."""
        return {
            Op.INIT: self._init,
            Op.DESTROY: self._succeed,
            Op.LOOKUP: self._lookup,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._forget_many,
            Op.GETATTR: self._getattr,
            Op.SETATTR: self._setattr,
            Op.STATFS: self._statfs,
            Op.OPEN: self._open,
            Op.CREATE: self._create,
            Op.MKNOD: self._mknod,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.POLL: self._poll,
            Op.FLUSH: self._flush,
            Op.FSYNC: self._done,
            Op.FSYNCDIR: self._done,
            Op.RELEASE: self._release,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._readdir,
            Op.RELEASEDIR: self._releasedir,
            Op.MKDIR: self._mkdir,
            Op.RMDIR: self._rmdir,
            Op.UNLINK: self._unlink,
            Op.SYMLINK: self._refuse,
            Op.LINK: self._refuse,
            Op.RENAME: self._refuse,
            Op.RENAME2: self._refuse,
            Op.GETXATTR: self._getxattr,
            Op.LISTXATTR: self._listxattr,
            Op.SETXATTR: self._setxattr,
            Op.REMOVEXATTR: self._removexattr,
        }

    # The mount.

    def _init(self, number: int, _node: int, body: memoryview) -> None:
        major, minor, ahead, _ = protocol.INIT.unpack_from(body)
        if (major, minor) < (protocol.MAJOR, protocol.MINOR):
            raise OSError(EPROTO, "the kernel is too old: it must be Linux 5.4 or newer")
        self._kernel.data(number, protocol.answer_init(minor, ahead))

    def _succeed(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.data(number)

    _done = _succeed

    def _refuse(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.fail(number, EPERM)

    def _statfs(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.data(number, protocol.answer_statfs())

    # Nodes.

    def _node(self, number: int) -> Node:
        try:
            return self._nodes[number]
        except KeyError:
            raise OSError(ESTALE, "the kernel has forgotten the node") from None

    def _attributes(self, node: Node) -> Attributes:
        is_folder = node.kind == stat.S_IFDIR
        mode = self._settings.folder_permissions if is_folder else self._settings.permissions
        if node.read_only:
            mode &= ~0o222
        return Attributes(
            node.number,
            node.kind | mode,
            node.size,
            node.changed or self._started,
            2 if is_folder else 1,
            self._user,
            self._group,
        )

    def _entry(self, node: Node) -> Attributes:
        """The attributes of a node for an answer that counts as a lookup; the kernel later forgets each lookup."""
        if not node.number:
            self._numbers += 1
            node.number = self._numbers
        self._nodes[node.number] = node
        node.lookups += 1
        return self._attributes(node)

    def _lookup(self, number: int, node: int, body: memoryview) -> Continuation | None:
        found = folder(self._node(node)).find(protocol.name_of(body))
        if iscoroutine(found):
            return self._lookup_later(number, found)
        assert isinstance(found, Node)
        self._kernel.data(number, protocol.answer_entry(self._entry(found)))
        return None

    async def _lookup_later(self, number: int, lookup: Coroutine[Any, Any, Node]) -> None:
        self._kernel.data(number, protocol.answer_entry(self._entry(await lookup)))

    def _forget(self, _number: int, node: int, body: memoryview) -> None:
        (times,) = protocol.FORGET.unpack_from(body)
        self._forget_node(node, times)

    def _forget_many(self, _number: int, _node: int, body: memoryview) -> None:
        count, _ = protocol.BATCH.unpack_from(body)
        for index in range(count):
            self._forget_node(*protocol.PAIR.unpack_from(body, protocol.BATCH.size + index * protocol.PAIR.size))

    def _forget_node(self, number: int, times: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == protocol.ROOT:
            return
        node.lookups -= times
        if node.lookups <= 0:
            node.lookups = 0
            del self._nodes[number]

    def _getattr(self, number: int, node: int, _body: memoryview) -> None:
        self._kernel.data(number, protocol.answer_attributes(self._attributes(self._node(node))))

    def _setattr(self, number: int, node: int, body: memoryview) -> Continuation | None:
        """Ignore a new length or time, which a shell redirection and touch set; refuse a new owner or mode."""
        valid, _ = protocol.SETATTR.unpack_from(body)
        if valid & protocol.OWNERSHIP:
            raise OSError(EPERM, "owner and permissions can't change: the mount sets them")
        touch = self._node(node).touch()
        if touch is not None:
            return self._touch_later(number, node, touch)
        self._getattr(number, node, body)
        return None

    async def _touch_later(self, number: int, node: int, touch: Continuation) -> None:
        await touch
        self._getattr(number, node, memoryview(b""))

    def _mkdir(self, number: int, node: int, body: memoryview) -> None:
        new_node = folder(self._node(node)).make(protocol.name_of(body[protocol.MKDIR.size :]))
        self._kernel.data(number, protocol.answer_entry(self._entry(new_node)))

    def _mknod(self, number: int, node: int, body: memoryview) -> None:
        mode, *_ = protocol.MKNOD.unpack_from(body)
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "only files and folders can be created")
        new_node = folder(self._node(node)).create(protocol.name_of(body[protocol.MKNOD.size :]))
        self._kernel.data(number, protocol.answer_entry(self._entry(new_node)))

    def _rmdir(self, number: int, node: int, body: memoryview) -> None:
        folder(self._node(node)).remove(protocol.name_of(body))
        self._kernel.data(number)

    def _unlink(self, number: int, node: int, body: memoryview) -> None:
        folder(self._node(node)).unlink(protocol.name_of(body))
        self._kernel.data(number)

    # Open files.

    def _open(self, number: int, node: int, body: memoryview) -> Continuation | None:
        flags, _ = protocol.OPEN.unpack_from(body)
        return self._open_node(number, self._node(node), flags, b"")

    def _create(self, number: int, node: int, body: memoryview) -> Continuation | None:
        flags, *_ = protocol.CREATE.unpack_from(body)
        new_node = folder(self._node(node)).create(protocol.name_of(body[protocol.CREATE.size :]))
        if flags & os.O_EXCL and new_node.lookups:
            raise OSError(EEXIST, "the file exists")
        return self._open_node(number, new_node, flags, protocol.answer_entry(self._entry(new_node)))

    def _open_node(self, number: int, node: Node, flags: int, entry: bytes) -> Continuation | None:
        if isinstance(node, Folder):
            raise OSError(EISDIR, "a folder can't be opened as a file")
        opened = node.open(flags)
        if iscoroutine(opened):
            return self._open_later(number, opened, entry)
        assert isinstance(opened, File)
        self._add_file(number, opened, entry)
        return None

    async def _open_later(self, number: int, opening: Coroutine[Any, Any, File], entry: bytes) -> None:
        self._add_file(number, await opening, entry)

    def _add_file(self, number: int, file: File, entry: bytes) -> None:
        self._handles += 1
        self.files[self._handles] = file
        self._kernel.data(number, entry + protocol.answer_open(self._handles, file.flags))

    def _file(self, handle: int) -> File:
        try:
            return self.files[handle]
        except KeyError:
            raise OSError(EBADF, "the file is not open") from None

    def _read(self, number: int, _node: int, body: memoryview) -> Continuation | None:
        handle, offset, size, flags = _TRANSFER(body)
        file = self.files.get(handle)
        if file is None:
            raise OSError(EBADF, "the file is not open")
        if not flags & os.O_ACCMODE:  # a reader that can't write can't subscribe or request, so it would wait forever
            flags |= os.O_NONBLOCK
        return file.read(number, offset, size, flags)

    def _write(self, number: int, _node: int, body: memoryview) -> Continuation | None:
        handle, offset, size, flags = _TRANSFER(body)
        file = self.files.get(handle)
        if file is None:
            raise OSError(EBADF, "the file is not open")
        return file.write(number, offset, body[_READ : _READ + size], flags)

    def _poll(self, number: int, _node: int, body: memoryview) -> None:
        handle, key, flags, _ = protocol.POLL.unpack_from(body)
        self._kernel.data(number, protocol.POLLED.pack(self._file(handle).poll(key, flags), 0))

    def _flush(self, number: int, _node: int, body: memoryview) -> Continuation | None:
        (handle,) = protocol.HANDLE.unpack_from(body)
        return self._file(handle).flush(number)

    def _release(self, number: int, _node: int, body: memoryview) -> Continuation | None:
        (handle,) = protocol.HANDLE.unpack_from(body)
        closing = self._file(handle).close()
        del self.files[handle]
        self._kernel.data(number)
        return closing

    # Open folders.

    def _opendir(self, number: int, node: int, _body: memoryview) -> Continuation | None:
        entries = folder(self._node(node)).list()
        if iscoroutine(entries):
            return self._list_later(number, node, entries)
        assert not isinstance(entries, Coroutine)
        self._add_listing(number, node, entries)
        return None

    async def _list_later(
        self, number: int, node: int, listing: Coroutine[Any, Any, Iterable[tuple[str, Node]]]
    ) -> None:
        self._add_listing(number, node, await listing)

    def _add_listing(self, number: int, node: int, entries: Iterable[tuple[str, Node]]) -> None:
        """Store the entries of a folder at the time of its opening, which reads then return."""
        dots = [(".", node, stat.S_IFDIR), ("..", node, stat.S_IFDIR)]
        self._handles += 1
        # A node without a lookup has no number yet, and a number in a listing must not be 0.
        self._listings[self._handles] = dots + [(name, entry.number or 1 << 32, entry.kind) for name, entry in entries]
        self._kernel.data(number, protocol.answer_open(self._handles, 0))

    def _readdir(self, number: int, _node: int, body: memoryview) -> None:
        handle, offset, size, *_ = protocol.READ.unpack_from(body)
        self._kernel.data(number, protocol.directory(self._listings.get(handle, ()), offset, size))

    def _releasedir(self, number: int, _node: int, body: memoryview) -> None:
        (handle,) = protocol.HANDLE.unpack_from(body)
        self._listings.pop(handle, None)
        self._kernel.data(number)

    # Extended attributes.

    def _getxattr(self, number: int, node: int, body: memoryview) -> None:
        size, _ = protocol.SIZED.unpack_from(body)
        name = protocol.name_of(body[protocol.SIZED.size :])
        if not name.startswith(_PREFIX):
            raise OSError(ENODATA, name)
        found = self._node(node).attributes().get(name.removeprefix(_PREFIX))
        if found is None:
            raise OSError(ENODATA, name)
        self._answer_value(number, size, found)

    def _listxattr(self, number: int, node: int, body: memoryview) -> None:
        size, _ = protocol.SIZED.unpack_from(body)
        names = self._node(node).attributes()
        self._answer_value(number, size, b"".join(f"{_PREFIX}{name}\0".encode() for name in names))

    def _answer_value(self, number: int, size: int, value: bytes) -> None:
        if not size:
            self._kernel.data(number, protocol.SIZE.pack(len(value), 0))
        elif len(value) > size:
            raise OSError(ERANGE, "the value is longer than the buffer")
        else:
            self._kernel.data(number, value)

    def _setxattr(self, number: int, node: int, body: memoryview) -> None:
        size, how = protocol.SIZED.unpack_from(body)
        raw, _, value = bytes(body[protocol.SIZED.size :]).partition(b"\0")
        name = raw.decode("utf-8", "surrogateescape")
        if how & (os.XATTR_CREATE | os.XATTR_REPLACE) and name.startswith(_PREFIX):
            exists = name.removeprefix(_PREFIX) in self._node(node).attributes()
            if exists and how & os.XATTR_CREATE:
                raise OSError(EEXIST, name)
            if not exists and how & os.XATTR_REPLACE:
                raise OSError(ENODATA, name)
        self._set_attribute(number, node, name, value[:size])

    def _removexattr(self, number: int, node: int, body: memoryview) -> None:
        self._set_attribute(number, node, protocol.name_of(body), None)

    def _set_attribute(self, number: int, node: int, name: str, value: bytes | None) -> None:
        if not name.startswith(_PREFIX):
            raise OSError(EINVAL, name)
        self._node(node).set_attribute(name.removeprefix(_PREFIX), value)
        self._kernel.data(number)
