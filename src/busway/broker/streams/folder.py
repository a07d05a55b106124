"""The folder of a stream: reads and writes its `stream.json` with a backup copy, and removes the folder."""

import logging
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from busway.broker.storage.data_folder import CHANNELS, JOURNAL, replace, sealed, sync, unsealed
from busway.broker.streams.database import FILE
from busway.errors import DataFailed
from busway.streams import SETTINGS, StreamConfig

log = logging.getLogger("busway.broker")

CONFIG: Final = "stream.json"
COPY: Final = "stream.json.bak"
LOG: Final = "log"


def write(folder: Path, config: StreamConfig) -> None:
    """Write the settings of a stream, and the backup copy."""
    for name in (CONFIG, COPY):
        replace(folder / name, sealed(config))


def discard(folder: Path) -> Path:
    """Rename the folder of a removed stream, so that a crash leaves all of it or none. Returns the folder to delete."""
    gone = folder.with_name(f".{folder.name}.removed")
    try:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        sync(folder.parent)
    except OSError as error:
        raise DataFailed(
            f"stream {folder.name!r} is closed, but its folder {folder} can't be removed ({error.strerror}): "
            "remove it, or the stream exists again when the broker restarts"
        ) from error
    return gone


def handles() -> tuple[int, int]:
    """About how many file handles are in use (the lowest free one), and their limit."""
    free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(free)
    return free, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def copy_config(folder: Path) -> None:
    """Update the backup copy of a `stream.json` that a user has created or changed. A failure is only logged."""
    file, copy = folder / CONFIG, folder / COPY
    try:
        content = file.read_bytes()
        known = copy.read_bytes() if copy.exists() else content
        if known != content:
            log.warning("%s differs from %s, and is replaced by a copy of it", copy, file)
        if known != content or not copy.exists():
            replace(copy, content)
    except OSError as error:
        log.warning("%s can't be written, so the stream has no backup of its settings: %s", copy, error.strerror)


class StoreUnnamed(DataFailed):
    """A stream of an earlier version names its database by a URL to which no store name belongs."""


def read(folder: Path, stores: Mapping[str, str] | None = None) -> StreamConfig | None:
    """Read the settings of a stream, or their backup copy if they are damaged. None: the stream was never completed.

    A stream of an earlier version may have the URL of its database. Then it gets the name of the store with this URL.
    Raises StoreUnnamed if no store has it.
    """
    try:
        return _read_one(folder, folder / CONFIG, stores or {})
    except StoreUnnamed:
        raise
    except DataFailed as error:
        try:
            copy = _read_one(folder, folder / COPY, stores or {})
        except DataFailed:
            raise error from None
        if copy is None:
            raise
        log.warning("%s; its backup copy %s is used, and replaces it", error.reason, folder / COPY)
        try:
            replace(folder / CONFIG, (folder / COPY).read_bytes())
        except OSError as failure:
            log.warning("%s can't be replaced by its backup copy: %s", folder / CONFIG, failure.strerror)
        return copy


def _read_one(folder: Path, file: Path, stores: Mapping[str, str]) -> StreamConfig | None:
    try:
        plain = unsealed(file.read_bytes(), dict[str, Any])
        if (url := plain.pop("url", None)) is not None:
            plain["store"] = _named(folder, file, url, stores)
        config = msgspec.convert(plain, StreamConfig)
        made = StreamConfig.make(config.name, **{key: getattr(config, key) for key in SETTINGS})
    except FileNotFoundError:
        if not any((folder / name).exists() for name in (LOG, FILE)):
            return None
        raise DataFailed(f"the stream in {folder} can't be opened: its {file} is missing") from None
    except OSError as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {file}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {file}: {error}") from error
    if config.name != folder.name:
        raise DataFailed(f"{file} has the settings of the stream {config.name!r}; was the folder renamed?")
    made = msgspec.structs.replace(made, former=config.former)
    if url is not None:
        _forget_url(folder, made)
    return made


def _forget_url(folder: Path, config: StreamConfig) -> None:
    """Replace the URL of the store, which may contain a password, by the name of the store."""
    try:
        write(folder, config)
    except OSError as error:
        log.warning("%s can't be written, and still has the URL of a database: %s", folder / CONFIG, error.strerror)
    else:
        log.info("stream %r is in the store %r, which has the URL that the stream had", config.name, config.store)


def _named(folder: Path, file: Path, url: object, stores: Mapping[str, str]) -> str:
    """The name of the store with this URL."""
    for name, known in stores.items():
        if known == url:
            return name
    raise StoreUnnamed(
        f"the stream in {folder} can't be opened: {file} names its database by a URL, and stores have names now. "
        "Start the broker with --store NAME=URL and the same URL (or --store NAME=env:VARIABLE), once for each URL"
    )


def missing(folder: Path, *, made: bool, new: bool, lost: bool) -> Path | None:
    """The file or folder that an existing stream lacks, or None.

    `made`: the folder was created just now. `new`: the stream is new. `lost`: the broker had the stream before.
    """
    if made or new:
        return folder if made and lost else None
    progress, records = folder / CHANNELS, folder / LOG
    has_progress = progress.exists() or (folder / JOURNAL).exists()
    if has_progress is records.exists():  # with neither, a user has created the stream by hand
        return None
    return records if has_progress else progress
