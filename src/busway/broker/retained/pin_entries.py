"""The entries of the file of pins: MessagePack, each in its own record. `pin_file` reads and writes the file."""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN
from busway.broker.retained.store import Key, RetainedMessage, Version, body_of, normal
from busway.broker.storage import record_format
from busway.broker.storage.record_format import Damage, Found

MARKS: Final = 65_536
"""The most removed pins whose removal stays recorded."""
MAGIC: Final = b"\xc1BWP"


class Pin(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """A message that was pinned."""

    session: int
    number: int
    name: str
    topic: str
    flags: int
    time: int
    fields: bytes
    payload: bytes
    since: int = 0

    @property
    def key(self) -> Key:
        return self.name, self.topic, normal(self.fields)

    @staticmethod
    def of(message: RetainedMessage) -> "Pin":
        content = message.flags, message.time, message.fields, message.payload
        return Pin(message.session, message.number, message.name, message.topic, *content, message.since)

    def message(self, client: int) -> RetainedMessage:
        body = body_of(self.time, self.number, self.fields, self.payload)
        flags = PIN | (FIELDS if self.fields else 0)
        return RetainedMessage(client, self.session, self.name, flags, self.topic, body, since=self.since)


class Unpin(msgspec.Struct, frozen=True, array_like=True, tag="unpin"):
    """The removal of the pin with this key. With a version it stays recorded, and no node restores an older pin."""

    name: str
    topic: str
    fields: bytes
    version: Version = (0, 0, 0)

    @property
    def key(self) -> Key:
        return self.name, self.topic, self.fields


Entry: TypeAlias = Pin | Unpin

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """One record of the file."""
    return record_format.frame(_encoder.encode(entry), MAGIC)


def scan(data: bytes) -> Iterator[Found[Entry] | Damage]:
    """All entries and damaged parts of a file, in order and without gaps."""
    return record_format.scan(data, _decode, MAGIC)


def _decode(body: bytes) -> Entry:
    try:
        entry = _decoder.decode(body)
        entry.key  # noqa: B018, raises for fields that can't be decoded
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return entry
