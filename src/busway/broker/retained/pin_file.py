"""The pins on disk: entries of an append-only file in the data folder."""

from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN
from busway.broker.retained.store import Key, RetainedMessage, Version, body_of, normal
from busway.broker.storage.keyed_journal import KeyedJournal

FILE: Final = "pins.log"
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
PinJournal: TypeAlias = KeyedJournal[Key, Entry]


def pin_journal(folder: Path) -> PinJournal:
    """The file of pins in the data folder. A removal without a version is not kept."""
    return KeyedJournal(
        folder / FILE,
        MAGIC,
        Entry,
        lambda entry: entry.key,
        keeps=lambda entry: isinstance(entry, Pin) or any(entry.version),
    )
