"""What the kernel asks of a file system, request by request: find, look, open, read, write, poll, close. A driver.

It knows nodes by the numbers that the kernel has for them, and open files by their handles; what those do is in their own modules.
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
from busway.gateway.files.nodes import File, Folder, Later, Node, folder

_PREFIX: Final = "user."
_READ: Final = protocol.READ.size
_TRANSFER: Final = protocol.TRANSFER.unpack_from


class FileSystem:
    """One mount: its nodes and its open files."""

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
        """Who handles what."""
        return {
            Op.INIT: self._init,
            Op.DESTROY: self._ignore,
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
            Op.SYMLINK: self._never,
            Op.LINK: self._never,
            Op.RENAME: self._never,
            Op.RENAME2: self._never,
            Op.GETXATTR: self._getxattr,
            Op.LISTXATTR: self._listxattr,
            Op.SETXATTR: self._setxattr,
            Op.REMOVEXATTR: self._removexattr,
        }

    # The mount.

    def _init(self, number: int, _node: int, body: memoryview) -> None:
        major, minor, ahead, _ = protocol.INIT.unpack_from(body)
        if (major, minor) < (protocol.MAJOR, protocol.MINOR):
            raise OSError(EPROTO, "the kernel is too old")
        self._kernel.data(number, protocol.answer_init(minor, ahead))

    def _ignore(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.data(number)

    _done = _ignore

    def _never(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.fail(number, EPERM)

    def _statfs(self, number: int, _node: int, _body: memoryview) -> None:
        self._kernel.data(number, protocol.answer_statfs())

    # Nodes.

    def _node(self, number: int) -> Node:
        try:
            return self._nodes[number]
        except KeyError:
            raise OSError(ESTALE, "the node is forgotten") from None

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

    def _known(self, node: Node) -> Attributes:
        """A node that the kernel gets to know: it may forget it as often as it was told of it."""
        if not node.number:
            self._numbers += 1
            node.number = self._numbers
        self._nodes[node.number] = node
        node.found += 1
        return self._attributes(node)

    def _lookup(self, number: int, node: int, body: memoryview) -> Later | None:
        found = folder(self._node(node)).find(protocol.name_of(body))
        if iscoroutine(found):
            return self._found(number, found)
        assert isinstance(found, Node)
        self._kernel.data(number, protocol.answer_entry(self._known(found)))
        return None

    async def _found(self, number: int, finding: Coroutine[Any, Any, Node]) -> None:
        self._kernel.data(number, protocol.answer_entry(self._known(await finding)))

    def _forget(self, _number: int, node: int, body: memoryview) -> None:
        (times,) = protocol.FORGET.unpack_from(body)
        self._forgotten(node, times)

    def _forget_many(self, _number: int, _node: int, body: memoryview) -> None:
        count, _ = protocol.BATCH.unpack_from(body)
        for at in range(count):
            self._forgotten(*protocol.ONE.unpack_from(body, protocol.BATCH.size + at * protocol.ONE.size))

    def _forgotten(self, number: int, times: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == protocol.ROOT:
            return
        node.found -= times
        if node.found <= 0:
            node.found = 0
            del self._nodes[number]

    def _getattr(self, number: int, node: int, _body: memoryview) -> None:
        self._kernel.data(number, protocol.answer_attributes(self._attributes(self._node(node))))

    def _setattr(self, number: int, node: int, body: memoryview) -> Later | None:
        """Lengths and times can't be set, but a shell that empties a file and a touch are content; owners and permissions are told."""
        valid, _ = protocol.SETATTR.unpack_from(body)
        if valid & protocol.OWNERSHIP:
            raise OSError(EPERM, "owner and permissions are those of the mount")
        touching = self._node(node).touch()
        if touching is not None:
            return self._touched(number, node, touching)
        self._getattr(number, node, body)
        return None

    async def _touched(self, number: int, node: int, touching: Later) -> None:
        await touching
        self._getattr(number, node, memoryview(b""))

    def _mkdir(self, number: int, node: int, body: memoryview) -> None:
        made = folder(self._node(node)).make(protocol.name_of(body[protocol.MKDIR.size :]))
        self._kernel.data(number, protocol.answer_entry(self._known(made)))

    def _mknod(self, number: int, node: int, body: memoryview) -> None:
        mode, *_ = protocol.MKNOD.unpack_from(body)
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "there are files and folders only")
        made = folder(self._node(node)).create(protocol.name_of(body[protocol.MKNOD.size :]))
        self._kernel.data(number, protocol.answer_entry(self._known(made)))

    def _rmdir(self, number: int, node: int, body: memoryview) -> None:
        folder(self._node(node)).remove(protocol.name_of(body))
        self._kernel.data(number)

    def _unlink(self, number: int, node: int, body: memoryview) -> None:
        folder(self._node(node)).unlink(protocol.name_of(body))
        self._kernel.data(number)

    # Open files.

    def _open(self, number: int, node: int, body: memoryview) -> Later | None:
        flags, _ = protocol.OPEN.unpack_from(body)
        return self._opening(number, self._node(node), flags, b"")

    def _create(self, number: int, node: int, body: memoryview) -> Later | None:
        flags, *_ = protocol.CREATE.unpack_from(body)
        made = folder(self._node(node)).create(protocol.name_of(body[protocol.CREATE.size :]))
        if flags & os.O_EXCL and made.found:
            raise OSError(EEXIST, "it is there")
        return self._opening(number, made, flags, protocol.answer_entry(self._known(made)))

    def _opening(self, number: int, node: Node, flags: int, entry: bytes) -> Later | None:
        if isinstance(node, Folder):
            raise OSError(EISDIR, "a folder")
        opened = node.open(flags)
        if iscoroutine(opened):
            return self._opened_later(number, opened, entry)
        assert isinstance(opened, File)
        self._opened(number, opened, entry)
        return None

    async def _opened_later(self, number: int, opening: Coroutine[Any, Any, File], entry: bytes) -> None:
        self._opened(number, await opening, entry)

    def _opened(self, number: int, file: File, entry: bytes) -> None:
        self._handles += 1
        self.files[self._handles] = file
        self._kernel.data(number, entry + protocol.answer_open(self._handles, file.flags))

    def _file(self, handle: int) -> File:
        try:
            return self.files[handle]
        except KeyError:
            raise OSError(EBADF, "no open file") from None

    def _read(self, number: int, _node: int, body: memoryview) -> Later | None:
        handle, offset, size, flags = _TRANSFER(body)
        file = self.files.get(handle)
        if file is None:
            raise OSError(EBADF, "no open file")
        if not flags & os.O_ACCMODE:  # who can't write can't subscribe or ask, so nothing would ever end its waiting
            flags |= os.O_NONBLOCK
        return file.read(number, offset, size, flags)

    def _write(self, number: int, _node: int, body: memoryview) -> Later | None:
        handle, offset, size, flags = _TRANSFER(body)
        file = self.files.get(handle)
        if file is None:
            raise OSError(EBADF, "no open file")
        return file.write(number, offset, body[_READ : _READ + size], flags)

    def _poll(self, number: int, _node: int, body: memoryview) -> None:
        handle, key, flags, _ = protocol.POLL.unpack_from(body)
        self._kernel.data(number, protocol.POLLED.pack(self._file(handle).poll(key, flags), 0))

    def _flush(self, number: int, _node: int, body: memoryview) -> Later | None:
        (handle,) = protocol.HANDLE.unpack_from(body)
        return self._file(handle).flush(number)

    def _release(self, number: int, _node: int, body: memoryview) -> Later | None:
        (handle,) = protocol.HANDLE.unpack_from(body)
        closing = self._file(handle).close()
        del self.files[handle]
        self._kernel.data(number)
        return closing

    # Open folders.

    def _opendir(self, number: int, node: int, _body: memoryview) -> Later | None:
        entries = folder(self._node(node)).list()
        if iscoroutine(entries):
            return self._listed_later(number, node, entries)
        assert not isinstance(entries, Coroutine)
        self._listed(number, node, entries)
        return None

    async def _listed_later(
        self, number: int, node: int, listing: Coroutine[Any, Any, Iterable[tuple[str, Node]]]
    ) -> None:
        self._listed(number, node, await listing)

    def _listed(self, number: int, node: int, entries: Iterable[tuple[str, Node]]) -> None:
        """What is listed is what was there when the folder was opened."""
        own = [(".", node, stat.S_IFDIR), ("..", node, stat.S_IFDIR)]
        self._handles += 1
        # The number of a node that the kernel has not found is not known to anybody; it must not be 0.
        self._listings[self._handles] = own + [(name, one.number or 1 << 32, one.kind) for name, one in entries]
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
        self._value(number, size, found)

    def _listxattr(self, number: int, node: int, body: memoryview) -> None:
        size, _ = protocol.SIZED.unpack_from(body)
        names = self._node(node).attributes()
        self._value(number, size, b"".join(f"{_PREFIX}{name}\0".encode() for name in names))

    def _value(self, number: int, size: int, value: bytes) -> None:
        if not size:
            self._kernel.data(number, protocol.SIZE.pack(len(value), 0))
        elif len(value) > size:
            raise OSError(ERANGE, "it is longer")
        else:
            self._kernel.data(number, value)

    def _setxattr(self, number: int, node: int, body: memoryview) -> None:
        size, how = protocol.SIZED.unpack_from(body)
        raw, _, value = bytes(body[protocol.SIZED.size :]).partition(b"\0")
        name = raw.decode("utf-8", "surrogateescape")
        if how & (os.XATTR_CREATE | os.XATTR_REPLACE) and name.startswith(_PREFIX):
            there = name.removeprefix(_PREFIX) in self._node(node).attributes()
            if there and how & os.XATTR_CREATE:
                raise OSError(EEXIST, name)
            if not there and how & os.XATTR_REPLACE:
                raise OSError(ENODATA, name)
        self._change(number, node, name, value[:size])

    def _removexattr(self, number: int, node: int, body: memoryview) -> None:
        self._change(number, node, protocol.name_of(body), None)

    def _change(self, number: int, node: int, name: str, value: bytes | None) -> None:
        if not name.startswith(_PREFIX):
            raise OSError(EINVAL, name)
        self._node(node).set_attribute(name.removeprefix(_PREFIX), value)
        self._kernel.data(number)
