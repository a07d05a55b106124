"""Converts the channel journal of Busway 0.1.0, the file `channels.log`, to a progress log.

The file stays until the log is complete on the disk. So a conversion that was interrupted begins again.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from busway._core import Log
from busway.broker.channels.journal_identity import JournalIdentity
from busway.broker.channels.progress_records import SNAPSHOT, record
from busway.broker.channels.state.progress import Entry, Stamp, States, apply
from busway.broker.storage import data_folder
from busway.broker.storage.record_format import Damage, Found, scan
from busway.common import environment
from busway.errors import DataFailed

log = logging.getLogger("busway.broker")

_ALL: Final = 1 << 40
"""Bytes: all records may wait to be written."""

_decoder: msgspec.msgpack.Decoder[Entry | Stamp] = msgspec.msgpack.Decoder(Entry | Stamp)


def convert(folder: Path, open_log: Callable[..., Log], *, copy: bool) -> None:
    """Convert the journal beside this folder of a progress log, if there is one. Raises DataFailed.

    `copy`: the journal is a replica of another broker's.
    """
    file = folder.with_name(data_folder.JOURNAL)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataFailed(f"{file} can't be read: {error.strerror}") from error
    found = list(scan(content, _decode))
    damage = _report(file, found)
    entries = [one.entry for one in found if isinstance(one, Found)]
    try:
        if damage:
            shutil.copy2(file, file.with_name(data_folder.JOURNAL + ".damaged"))
        if folder.exists():  # of a conversion that was interrupted
            shutil.rmtree(folder)
        _write(open_log(folder, "synced", pending_bytes=_ALL), entries, _stamp(entries, damaged=damage, copy=copy))
        file.with_name(data_folder.JOURNAL + ".new").unlink(missing_ok=True)
        file.unlink()
        data_folder.sync(file.parent)
    except OSError as error:
        raise DataFailed(f"{file} can't be converted to the log in {folder}: {error.strerror or error}") from error
    log.info("%s of an earlier version was converted to the log in %s", file, folder)


def _decode(body: bytes) -> Entry | Stamp:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _report(file: Path, found: Iterable[Found[Entry | Stamp] | Damage]) -> bool:
    """Report damage. Returns whether the file lacks more than an end that was being written."""
    damage = [one for one in found if isinstance(one, Damage)]
    for one in damage:
        log.warning("%s: %s", file, one)
    if real := not all(one.torn for one in damage):
        log.warning("a copy of the damaged file is in %s.damaged", file)
    return real


def _stamp(entries: Iterable[Entry | Stamp], *, damaged: bool, copy: bool) -> Stamp | None:
    """The identity and length of the journal; None: it has none."""
    if copy:
        return next((entry for entry in reversed(list(entries)) if isinstance(entry, Stamp)), None)
    identity = JournalIdentity(new=False)
    for entry in entries:
        identity.found(entry if isinstance(entry, Stamp) else None)
    stamp = identity.stamp()
    if damaged:  # any life may lack entries
        stamp = msgspec.structs.replace(stamp, count=0, ends=tuple((life, 0) for life, _ in stamp.ends))
    return stamp if stamp.journal else None


def _write(opened: Log, entries: Iterable[Entry | Stamp], stamp: Stamp | None) -> None:
    states: States = {}
    for entry in entries:
        apply(states, entry)
    rows = [record(SNAPSHOT, state.entries()) for state in states.values()]
    if stamp is not None:
        rows.append(record(SNAPSHOT, [stamp]))
    opened.append(rows, environment.time_ns())
    opened.close()
