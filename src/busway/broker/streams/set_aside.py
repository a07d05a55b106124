"""Records that only a replaced broker had: set aside in its data folder, and listed and read from there.

They are in `set-aside/<guid>/<stream>`, in the format of a stream's folder. Only the operator removes them. The cluster
puts them there; the admin services read them.
"""

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from busway._core import Log
from busway.broker.storage.data_folder import replace, sealed, sync, unsealed
from busway.broker.storage.permissions import make_folder
from busway.broker.streams.folder import LOG, read
from busway.broker.streams.stream import settings
from busway.common import environment
from busway.errors import BusError, Code, DataFailed, Rejected
from busway.streams import StreamConfig

log = logging.getLogger("busway.broker")

FOLDER: Final = "set-aside"
FILE: Final = "aside.json"


class Aside(msgspec.Struct, frozen=True):
    """The records of one stream that were set aside: offsets from `first` to before `next`."""

    guid: str
    """The guid that the broker had when it stored them."""
    stream: str
    first: int
    next: int
    time: float
    """When they were set aside, in seconds since 1970."""


def open_records(folder: Path, config: StreamConfig) -> Log:
    """Open the log in the folder of a stream that no broker uses."""
    return environment.open_log(folder / LOG, name=config.name, **settings(config))


def put(root: Path, folder: Path, config: StreamConfig, guid: str, first: int, following: int) -> Path:
    """Move the folder of a stream here. The records from `first` on are those that no other broker has."""
    parent = root / FOLDER / guid
    make_folder(parent)
    place, number = parent / config.name, 1
    while place.exists():
        place, number = parent / f"{config.name}.{number}", number + 1
    replace(folder / FILE, sealed(Aside(guid, config.name, first, following, environment.time_ns() / 1e9)))
    folder.rename(place)
    environment.move_log(folder / LOG, place / LOG)
    sync(parent)
    return place


def listed(root: Path | None) -> list[dict[str, Any]]:
    """What is set aside in a data folder: for each stream its fields, and the folder relative to the data folder."""
    found: list[dict[str, Any]] = []
    if root is None:
        return found
    for file in sorted((root / FOLDER).glob(f"*/*/{FILE}")):
        try:
            aside = unsealed(file.read_bytes(), Aside)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("can't read %s: %s; the records beside it are not listed", file, error)
            continue
        place = str(file.parent.relative_to(root))
        found.append(msgspec.to_builtins(aside) | {"count": aside.next - aside.first, "folder": place})
    return found


def fetch(root: Path | None, place: str, offset: int, most: int) -> tuple[int, int, bytes]:
    """Records that were set aside: the offset to read next, the end, and a block of records from `offset` on."""
    found = next((one for one in listed(root) if one["folder"] == place), None)
    if root is None or found is None:
        raise Rejected(f"nothing is set aside in {place!r}; see 'busway stream recover'", code=Code.NO_STREAM)
    begin, end = max(offset, found["first"]), found["next"]
    if begin >= end or (config := read(root / place)) is None:
        return end, end, b""
    try:
        records = open_records(root / place, config)
        try:
            _, following, block = records.read_written(begin, most)
        finally:
            records.close()
    except BusError as error:
        raise DataFailed(f"can't read the records in {root / place}: {error.reason}") from error
    return (following if block else end), end, block
