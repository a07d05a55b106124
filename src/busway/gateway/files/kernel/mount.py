"""Mounting and unmounting of folders: by system call for root, by fusermount3 for other users. A driver.

`door.py` calls it, and `busway doctor` calls missing(). The mount of a killed process remains, and every access to it
fails; prepare() removes it before the next mount.
"""

import array
import ctypes
import os
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from errno import EACCES, ENODEV, ENOENT, ENOTCONN, EPERM
from pathlib import Path
from typing import Final

from busway.errors import MountFailed
from busway.gateway.files.config import Mount

DEVICE: Final = "/dev/fuse"
TYPE: Final = "fuse.busway"
_SOURCE: Final = "busway"
_NOSUID, _NODEV, _DETACH = 2, 4, 2
_HELPER: Final = "fusermount3"
_INSTALL: Final = "install it: apt install fuse3, dnf install fuse3, …"


def missing() -> str | None:
    """The reason why mounting is impossible on this host; None if nothing is known to be missing."""
    if sys.platform != "linux":
        return f"it needs Linux, but this is {sys.platform}"
    if not Path(DEVICE).exists():
        return _reason(OSError(ENOENT, ""))
    if os.geteuid() != 0 and shutil.which(_HELPER) is None:
        return f"{_HELPER} is missing, which users other than root need to mount: {_INSTALL}"
    return None


def is_stale(folder: Path) -> bool:
    """Whether the folder has the mount of a process that has ended."""
    try:
        folder.stat()
    except OSError as error:
        return error.errno == ENOTCONN
    return False


def prepare(folder: Path) -> bool:
    """Check that a folder can be mounted on. Returns whether it has removed the mount of a killed process.

    Raises MountFailed if the folder can't be used.
    """
    repaired = False
    while is_stale(folder):
        unmount(folder)
        repaired = True
    try:
        found = folder.stat()
    except FileNotFoundError:
        raise MountFailed(f"there is no folder {folder}: make it with mkdir -p {folder}") from None
    except OSError as error:
        raise MountFailed(f"{folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise MountFailed(f"{folder} is not a folder")
    kind = mounted(folder)
    if kind is not None and kind == TYPE:
        raise MountFailed(f"a bus is mounted on {folder} already: unmount it with {_HELPER} -u {folder}")
    if any(folder.iterdir()):
        raise MountFailed(f"{folder} is not empty, and a mount would hide its content: use an empty folder")
    return repaired


def mounted(folder: Path) -> str | None:
    """The type of the file system that is mounted on a folder; None if there is none."""
    path = os.fspath(folder.parent.resolve() / folder.name)  # an access to the mount itself would need an answer
    kind = None
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
            _, mount_point, type_, *_ = line.split(" ")
            raw = mount_point.encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
            if raw.decode("utf-8", "surrogateescape") == path:
                kind = type_
    return kind


def mount(folder: Path, settings: Mount) -> int:
    """Mount a folder, and return the open, non-blocking /dev/fuse. Raises MountFailed."""
    if (reason := missing()) is not None:
        raise MountFailed(f"can't mount {folder}: {reason}")
    fd = _by_call(folder, settings) if os.geteuid() == 0 else _by_helper(folder, settings)
    os.set_blocking(fd, False)
    return fd


def _options(settings: Mount) -> str:
    return "default_permissions" + (",allow_other" if settings.allow_other else "")


def _by_call(folder: Path, settings: Mount) -> int:
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountFailed(_reason(error)) from None
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},{_options(settings)}"
    if libc.mount(_SOURCE.encode(), os.fsencode(folder), TYPE.encode(), _NOSUID | _NODEV, options.encode()):
        os.close(fd)
        code = ctypes.get_errno()
        raise MountFailed(f"can't mount {folder}: {_reason(OSError(code, os.strerror(code)))}")
    return fd


def _reason(error: OSError) -> str:
    if error.errno in {ENOENT, ENODEV}:
        return (
            f"{DEVICE} is missing: the kernel has no FUSE (modprobe fuse), or the container has no access to the device"
        )
    if error.errno in {EPERM, EACCES}:
        return f"{error.strerror}: mounting is not allowed here (in a container: --device {DEVICE} --cap-add SYS_ADMIN)"
    return error.strerror or str(error)


def _by_helper(folder: Path, settings: Mount) -> int:
    """Mount as libfuse does: the helper, which has the right to mount, sends the open device through a socket."""
    helper = shutil.which(_HELPER) or _HELPER
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        options = f"{_options(settings)},fsname={_SOURCE},subtype={TYPE.partition('.')[2]}"
        done = subprocess.run(  # noqa: S603 - a program of the system
            [helper, "-o", options, "--", os.fspath(folder)],
            env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip()
            raise MountFailed(f"can't mount {folder}: {text or f'{_HELPER} failed'}")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(array.array("i", [0]).itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            (fd,) = array.array("i", data[:4])
            os.set_inheritable(fd, False)
            return fd
    raise MountFailed(f"can't mount {folder}: {_HELPER} did not send the open device")


def unmount(folder: Path) -> None:
    """Unmount a folder, also while files in it are open; further access to those fails. Raises MountFailed."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(folder), _DETACH):
            raise MountFailed(f"can't unmount {folder}: {os.strerror(ctypes.get_errno())}")
        return
    helper = shutil.which(_HELPER)
    if helper is None:
        raise MountFailed(f"{_HELPER} is missing, which users other than root need to unmount: {_INSTALL}")
    done = subprocess.run([helper, "-u", "-z", "--", os.fspath(folder)], capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise MountFailed(f"can't unmount {folder}: {done.stderr.decode(errors='replace').strip()}")
