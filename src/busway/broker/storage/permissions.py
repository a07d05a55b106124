"""Permissions of a data folder: only the user of the broker has access to its content (folders 0700, files 0600).

Messages, pins and settings may be confidential. The umask can only make the modes stricter. All modules that create
files in a data folder use this module.
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
"""The names that the broker and `busway lake replay` create in a data folder."""


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, with access for this user only. Existing folders are not changed."""
    missing: list[Path] = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def restrict(root: Path) -> None:
    """Remove the access of other users to a data folder of an earlier version, and log that once.

    Other files in the folder keep their modes; then the folder keeps its own, too. A folder of another user is not
    changed. Both are logged as warnings if other users have access.
    """
    about = root.stat()
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        if mode & _OTHERS:
            log.warning(
                "the data folder %s has mode %04o and belongs to user %d, not to the user of this broker (%d): "
                "other users may have access to its messages; run chmod -R go= %s as its owner",
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
            "the data folder %s: %d files or folders stay open to other users, because their modes can't be changed; "
            "run chmod -R go= %s",
            *(root, len(loose) - changed, root),
        )
    if shared and mode & _OTHERS:
        log.warning(
            "the data folder %s has mode %04o, which was not changed because other files are in it; "
            "give the broker its own folder",
            *(root, mode),
        )


def _is_own(name: str) -> bool:
    """Whether the broker creates files of this name, also new files and copies of damaged ones."""
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
