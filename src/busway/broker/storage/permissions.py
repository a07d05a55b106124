"""Permissions of a data folder: only the user of the broker may read or write what is in it (folders 0700, files 0600).

The umask can only make them stricter. Messages, pins and settings may be confidential, so other users of the host get no access.
"""

import errno
import logging
import os
import stat
from pathlib import Path
from typing import Final

log = logging.getLogger("busway.broker")

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077
OWN: Final = ("broker.json", "pins.log", "streams", "mirrors", "mirrors.json", "servers.json", "cluster.log", "replay")
"""What the broker, and `busway lake replay`, make in a data folder."""


def make_folder(path: Path) -> None:
    """Make a folder and the missing folders above it, each with access for this user only. An existing folder is not changed."""
    missing: list[Path] = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def restrict(root: Path) -> None:
    """Take the access of other users away from a data folder of an earlier version, and log it once.

    What else lies in the folder is not the broker's, and keeps its modes; then the folder itself does so, too. A folder of another user is
    left as it is. Either is a warning if other users have access.
    """
    about = root.stat()
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        if mode & _OTHERS:
            log.warning(
                "the data folder %s has mode %04o and belongs to user %d, not to the user of this broker (%d): other users may "
                "have access to what is stored; run chmod -R go= %s as its owner",
                *(root, mode, about.st_uid, os.geteuid(), root),
            )
        return
    entries = list(root.iterdir())
    own = [entry for entry in entries if _is_own(entry.name)]
    shared = len(own) < len(entries)
    paths = [*([] if shared else [root]), *(path for entry in own for path in (entry, *_inside(entry)))]
    loose = [path for path in paths if _is_loose(path)]
    changed = sum(map(_restrict_one, loose))
    if changed:
        log.warning(
            "the data folder %s was open to other users: removed their access (%d modes changed)", root, changed
        )
    if changed < len(loose):
        log.warning(
            "the data folder %s: %d files or folders stay open to other users, since their modes can't be changed; run chmod -R go= %s",
            *(root, len(loose) - changed, root),
        )
    if shared and mode & _OTHERS:
        log.warning(
            "the data folder %s has mode %04o, which was not changed since other files are in it; give the broker a folder of its own",
            *(root, mode),
        )


def _is_own(name: str) -> bool:
    """Whether the broker has made it: also a new file, or a copy of a damaged one."""
    return any(name == own or name.startswith(f"{own}.") for own in OWN)


def _inside(folder: Path) -> list[Path]:
    found = ((Path(place), names, files) for place, names, files in os.walk(folder))
    return [place / name for place, names, files in found for name in (*names, *files)]


def _is_loose(path: Path) -> bool:
    try:
        about = path.lstat()
    except OSError:  # another process has removed it
        return False
    return not stat.S_ISLNK(about.st_mode) and bool(about.st_mode & _OTHERS)


def _restrict_one(path: Path) -> bool:
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
    except OSError:
        return False
    return True
