"""Upgrade of a lake that an older Busway wrote: its files become part of a Delta table. No file is written anew.

The public function is upgrade(); `busway lake upgrade` calls it. The older format has JSON commits in `commits` and the
files in `data`. They stay where they are; a single commit of the Delta table adds them.
"""

import fcntl
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from busway.spark.lake.coverage import Covered, LakeError
from busway.spark.lake.delta_table import Lake
from busway.spark.ranges import Place

DATA: Final = "data"
_VERSION: Final = 1
_NAME: Final = re.compile(r"(\d{8,})(\.all)?\.json")


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of an upgrade."""

    files: int
    rows: int


def upgrade(lake: str) -> Upgraded:
    """Make a Delta table of a lake of the older format. Raises LakeError. After a kill it can be called again."""
    opened, folder = Lake(lake), Path(lake)
    if not opened.local or not (folder / "commits").is_dir():
        raise LakeError(f"{lake} is not a lake of an older Busway in a local folder: there is nothing to upgrade")
    with _locked(folder):
        topics, covered, files = _content(folder / "commits")
        snapshot = opened.snapshot(opened.create())
        if not snapshot.covered:
            for aside in [folder / "aside"] if (folder / "aside").exists() else []:
                aside.rename(folder / "_aside")  # VACUUM ignores names with an underscore
            added = [opened.measured(path, DATA) for path in files if (folder / DATA / path).exists()]
            rows = sum(files.values())
            if (found := sum(one.rows for one in added)) != rows:
                raise LakeError(
                    f"the commits of {lake} have {rows} rows, but their files have {found}: restore the files from a copy"
                )
            snapshot = opened.commit(snapshot, added, tuple(covered.values()), topics)
        (folder / "commits").rename(folder / "_commits")
    return Upgraded(len(snapshot.files), snapshot.total)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an older archive, so that none runs."""
    with (folder / "lock.json").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeError(f"an archive writes to the lake {folder}: stop it first") from None
        yield


def _content(folder: Path) -> tuple[tuple[str, ...], dict[Place, Covered], dict[str, int]]:
    """Return the topics, the coverage and the files with their rows that the commits of the older format have."""
    topics: tuple[str, ...] = ()
    covered: dict[Place, Covered] = {}
    files: dict[str, int] = {}
    found = {(int(name[1]), bool(name[2])): file for file in folder.iterdir() if (name := _NAME.fullmatch(file.name))}
    begin = max((number for number, whole in found if whole), default=0)
    for number, whole in [(begin, True)] * bool(begin) + sorted(key for key in found if key[0] > begin and not key[1]):
        if number != begin + 1 and not whole:
            raise LakeError(
                f"commit {begin + 1} of the lake is missing: after {begin} comes {number}. Restore it from a copy"
            )
        begin = number
        content = _checked(found[number, whole])
        for given in content["ranges"]:
            part = msgspec.convert(given, Covered)
            before = covered.get(part.place)
            covered[part.place] = part if before is None else before.extended(part)
        for path in content.get("removed", ()):
            del files[path]
        files |= {file["path"]: file["rows"] for file in content.get("added", content.get("files", ()))}
        topics = tuple(content["topics"]) or topics
    return topics or ("**",), covered, files


def _checked(file: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, OSError) as error:
        raise LakeError(f"{file} is damaged ({error}): restore it from a copy") from error
    known = content.pop("checksum", None)
    if content.get("version") != _VERSION or known != f"{zlib.crc32(msgspec.json.encode(content, order='sorted')):08x}":
        raise LakeError(f"{file} is damaged or of another version: restore it from a copy")
    return content
