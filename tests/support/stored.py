"""Helpers for tests of the log: rows, reading all of it, waiting until it is safe, and a model."""

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from busway._core import Log, block_records

if TYPE_CHECKING:
    from busway._core import Row


class Stored(NamedTuple):
    """What is compared of a record."""

    offset: int
    sequence: int
    topic: str
    payload: bytes
    session: int
    number: int


def row(
    topic: str = "a",
    payload: bytes = b"",
    *,
    fields: bytes | None = None,
    sender: str = "",
    session: int = 0,
    number: int = 0,
    time: int = 0,
    expires: int = 0,
    due: int = 0,
) -> "Row":
    return (topic, payload, fields, sender, session, number, time, expires, due)


def stored(block: bytes) -> list[Stored]:
    return [Stored(r[0], r[1], r[3], r[4], r[7], r[8]) for r in block_records(block)]


def read_all(log: Log, begin: int = 0, most: int = 1 << 20) -> list[Stored]:
    found: list[Stored] = []
    while True:
        first, begin_next, block = log.read(begin, most)
        records = stored(block)
        if not records:
            return found
        assert [r.offset for r in records] == list(range(first, begin_next))
        assert first >= begin
        found += records
        begin = begin_next


def wait_safe(log: Log) -> tuple[int, int, str] | None:
    """Flush, and wait for the writer: what could not be written, if anything."""
    log.flush()
    while log.safe < log.next:
        if (fd := log.fileno()) is not None:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(30_000), "the writer has not come back"
        if lost := log.remove_unwritten():
            return lost
    return log.remove_unwritten()


class Model:
    """A log as a list: what it holds, the last sequence of each topic, what waits to be due and what has waited."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.sequences: dict[str, int] = {}
        self.stored = 0
        self.waiting: dict[tuple[int, int], tuple[int, int]] = {}
        self.released: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}

    def append(self, given: "Row", now: int = 0) -> tuple[int, int]:
        topic, payload, _, _, session, number, _, _, due = given
        for known in self.records:
            if session and (known.session, known.number) == (session, number):
                return known.offset, known.sequence
        self.stored = max(self.stored, now)
        if session and due > self.stored:
            self.waiting[session, number] = due, len(self.records)
            self.records.append(Stored(len(self.records), 0, topic, payload, session, number))
            return self.records[-1].offset, 0
        return self._add(topic, payload, session, number)

    def _add(self, topic: str, payload: bytes, session: int, number: int) -> tuple[int, int]:
        sequence = self.sequences[topic] = self.sequences.get(topic, 0) + 1
        self.records.append(Stored(len(self.records), sequence, topic, payload, session, number))
        return self.records[-1].offset, sequence

    def release(self, key: tuple[int, int], now: int) -> None:
        """One that waits is due."""
        due, offset = parked = self.waiting.pop(key)
        self.stored = max(self.stored, now, due)
        self.released[len(self.records)] = key, parked
        self._add(self.records[offset].topic, self.records[offset].payload, *key)

    def trim(self, first: int) -> None:
        """What waits below this offset is gone."""
        self.waiting = {key: parked for key, parked in self.waiting.items() if parked[1] >= first}

    def cut(self, length: int) -> None:
        """Forget what is behind the first so many."""
        for gone in reversed(self.records[length:]):
            if gone.sequence:
                self.sequences[gone.topic] = gone.sequence - 1
            if gone.offset in self.released:
                key, parked = self.released.pop(gone.offset)
                self.waiting[key] = parked
        self.waiting = {key: parked for key, parked in self.waiting.items() if parked[1] < length}
        del self.records[length:]

    def topics(self) -> dict[str, int]:
        return {topic: last for topic, last in self.sequences.items() if last}


def last_sequences(log: Log) -> dict[str, int]:
    return {topic: last for topic, last in log.sequences().items() if last}


def lost(damage: Iterable[tuple[str, int, int, int | None, str]]) -> set[int]:
    """The offsets that damage tells of."""
    return {offset for _, _, begin, end, _ in damage for offset in range(begin, end or begin)}
