"""Converts the channel journal of Busway 0.1.0, the file `channels.log`, to a progress log.

The file stays until the log is complete on the disk. So a conversion that was interrupted begins again.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from busway.broker.channels.state.progress import Entry, States, apply
from busway.broker.storage import data_folder
from busway.broker.storage.record_format import Damage, Found, scan
from busway.errors import DataFailed

log = logging.getLogger("busway.broker")


class _Stamp(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """An entry with the identity of the journal, which the log does not need."""


_OldEntry: TypeAlias = Entry | _Stamp
_decoder: msgspec.msgpack.Decoder[_OldEntry] = msgspec.msgpack.Decoder(_OldEntry)


def convert(folder: Path, create: Callable[[Path, States], None]) -> None:
    """Convert the journal beside this folder of a progress log, if there is one. Raises DataFailed.

    `create` makes a log with these states, complete on the disk.
    """
    file = folder.with_name(data_folder.JOURNAL)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataFailed(f"{file} can't be read: {error.strerror}") from error
    found = list(scan(content, _decode))
    damaged = _report(file, found)
    states: States = {}
    for one in found:
        if isinstance(one, Found) and not isinstance(one.entry, _Stamp):
            apply(states, one.entry)
    try:
        if damaged:
            shutil.copy2(file, file.with_name(data_folder.JOURNAL + ".damaged"))
        if folder.exists():  # of a conversion that was interrupted
            shutil.rmtree(folder)
        create(folder, states)
        file.with_name(data_folder.JOURNAL + ".new").unlink(missing_ok=True)
        file.unlink()
        data_folder.sync(file.parent)
    except OSError as error:
        raise DataFailed(f"{file} can't be converted to the log in {folder}: {error.strerror or error}") from error
    log.info("%s of an earlier version was converted to the log in %s", file, folder)


def _decode(body: bytes) -> _OldEntry:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _report(file: Path, found: Iterable[Found[_OldEntry] | Damage]) -> bool:
    """Report damage. Returns whether the file lacks more than an end that was being written."""
    damage = [one for one in found if isinstance(one, Damage)]
    for one in damage:
        log.warning("%s: %s", file, one)
    if real := not all(one.torn for one in damage):
        log.warning("a copy of the damaged file is in %s.damaged", file)
    return real
