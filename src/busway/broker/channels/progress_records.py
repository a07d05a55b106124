"""The records of a progress log: each holds the entries of one write, or snapshots of channels.

A record is read whole or not at all. So a snapshot, which begins with the creation of its channel, never replaces more
than it contains.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from busway._core import Log, block_records
from busway.broker.channels.state.progress import Entry, States, apply
from busway.settings import MiB

if TYPE_CHECKING:
    from busway._core import Row

ENTRIES: Final = "entries"
"""The topic of records with new entries."""
SNAPSHOT: Final = "snapshot"
"""The topic of records whose entries repeat the state of channels."""
_BLOCK: Final = MiB
"""Bytes of one read."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Entry]] = msgspec.msgpack.Decoder(list[Entry])


def record(topic: str, entries: Iterable[Entry]) -> "Row":
    """A record with these entries, to append."""
    return topic, _encoder.encode(list(entries)), None, "", 0, 0, 0, 0, 0


def entries_of(body: bytes) -> list[Entry]:
    """The entries of a record. Raises ValueError if a newer version of Busway wrote it."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def read_states(log: Log) -> tuple[States, list[str]]:
    """The states that the records of a log add up to, and which records this version can't read. Raises DataFailed."""
    states: States = {}
    unreadable: list[str] = []
    offset = log.first
    while offset < log.written:
        first, following, block = log.read_written(offset, _BLOCK)
        for row in block_records(block):
            try:
                entries = entries_of(row[4])
            except ValueError as error:
                unreadable.append(f"the record at offset {row[0]} can't be read: {error}")
                continue
            for entry in entries:
                apply(states, entry)
        offset = max(first, following, offset + 1)
    return states, unreadable
