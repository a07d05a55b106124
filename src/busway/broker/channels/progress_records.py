"""The records of a progress log: each holds the entries of one write, or snapshots of channels.

A record is read whole or not at all. So a snapshot, which begins with the creation of its channel, never replaces more
than it contains.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.channels.state.progress import Entry, Stamp

if TYPE_CHECKING:
    from busway._core import Row

ENTRIES: Final = "entries"
"""The topic of records with new entries."""
SNAPSHOT: Final = "snapshot"
"""The topic of records whose entries repeat the state of channels."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Entry | Stamp]] = msgspec.msgpack.Decoder(list[Entry | Stamp])


def record(topic: str, entries: Iterable[Entry | Stamp]) -> "Row":
    """A record with these entries, to append."""
    return topic, _encoder.encode(list(entries)), None, "", 0, 0, 0, 0, 0


def entries_of(body: bytes) -> list[Entry | Stamp]:
    """The entries of a record. Raises ValueError if a newer version of Busway wrote it."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
