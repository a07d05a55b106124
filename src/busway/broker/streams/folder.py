"""What lies in the folder of a stream beside its records: what the stream is, in a file and a copy of it."""

import logging
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from busway.broker.channels.journal import FILE as JOURNAL
from busway.broker.storage.data_folder import replace, sealed, sync, unsealed
from busway.broker.streams.database import FILE
from busway.errors import DataFailed
from busway.streams import SETTINGS, StreamConfig

log = logging.getLogger("busway.broker")

CONFIG: Final = "stream.json"
COPY: Final = "stream.json.bak"
LOG: Final = "log"


def write(folder: Path, config: StreamConfig) -> None:
    """Note what a stream is."""
    for name in (CONFIG, COPY):
        replace(folder / name, sealed(config))


def discard(folder: Path) -> Path:
    """Set a stream's folder aside, so that a crash leaves either all of it or nothing that counts; what is to be removed."""
    gone = folder.with_name(f".{folder.name}.removed")
    try:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        sync(folder.parent)
    except OSError as error:
        raise DataFailed(
            f"stream {folder.name!r} is closed, but its folder {folder} can't be removed ({error.strerror}): "
            "remove it, or the stream is there again when the broker starts"
        ) from error
    return gone


def handles() -> tuple[int, int]:
    """About how many file handles are in use (the lowest that is free), and how many there may be."""
    free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(free)
    return free, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def copy_config(folder: Path) -> None:
    """Have a second copy of what a stream is, also if it was made or changed by hand. That is only a help."""
    file, copy = folder / CONFIG, folder / COPY
    try:
        content = file.read_bytes()
        known = copy.read_bytes() if copy.exists() else content
        if known != content:
            log.warning("%s differs from %s, and is written anew", copy, file)
        if known != content or not copy.exists():
            replace(copy, content)
    except OSError as error:
        log.warning("%s can't be written: %s", copy, error.strerror)


class StoreUnnamed(DataFailed):
    """A stream was made by an earlier version with the URL of its database, which has no name yet."""


def read(folder: Path, stores: Mapping[str, str] | None = None) -> StreamConfig | None:
    """What a folder's stream is; None: it was never finished. If that is damaged, its copy tells.

    A stream of an earlier version may have the URL of its database: it is in the store that has this URL.
    Raises StoreUnnamed if none has.
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
        log.warning("%s; its copy %s is used, and put in its place", error.reason, folder / COPY)
        try:
            replace(folder / CONFIG, (folder / COPY).read_bytes())
        except OSError as failure:
            log.warning("%s can't be written: %s", folder / CONFIG, failure.strerror)
        return copy


def _read_one(folder: Path, file: Path, stores: Mapping[str, str]) -> StreamConfig | None:
    try:
        plain = unsealed(file.read_bytes(), dict[str, Any])
        if (url := plain.pop("url", None)) is not None:
            plain["store"] = _named(folder, file, url, stores)
        config = msgspec.convert(plain, StreamConfig)
        made = StreamConfig.make(config.name, **{key: getattr(config, key) for key in SETTINGS})
    except FileNotFoundError:
        if not any((folder / one).exists() for one in (LOG, FILE)):
            return None
        raise DataFailed(f"the stream in {folder} can't be opened: its {file} is missing") from None
    except OSError as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {file}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {file}: {error}") from error
    if config.name != folder.name:
        raise DataFailed(f"{file} speaks of the stream {config.name!r}; was the folder renamed?")
    made = msgspec.structs.replace(made, former=config.former)
    if url is not None:
        _forget_url(folder, made)
    return made


def _forget_url(folder: Path, config: StreamConfig) -> None:
    """Note the name of the store in place of its URL, which may have a password in it."""
    try:
        write(folder, config)
    except OSError as error:
        log.warning("%s still has the URL of a database: it can't be written: %s", folder / CONFIG, error.strerror)
    else:
        log.info("stream %r is in the store %r, which has the URL that the stream had", config.name, config.store)


def _named(folder: Path, file: Path, url: object, stores: Mapping[str, str]) -> str:
    """The name of the store with this URL."""
    for name, known in stores.items():
        if known == url:
            return name
    raise StoreUnnamed(
        f"the stream in {folder} can't be opened: {file} names its database by the URL, which has to have a name now. "
        "Start the broker with --store NAME=URL and the same URL (or --store NAME=env:VARIABLE), once for each URL"
    )


def missing(folder: Path, *, made: bool, new: bool, lost: bool) -> Path | None:
    """What is not there of a stream that was here before. `made`: the folder itself is new; `new`: the stream is; `lost`: but there was one."""
    if made or new:
        return folder if made and lost else None
    journal, records = folder / JOURNAL, folder / LOG
    if journal.exists() is records.exists():  # made by hand, and never opened, if there is neither
        return None
    return records if journal.exists() else journal
