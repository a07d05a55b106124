"""The ledger of the sink: records the last committed epoch of a query, and finds the rows that are already stored.

The sink and the replay of a lake call this module. The ledger of a query is one pinned message with the last committed
epoch, the run of the query, the start time of the broker, and the ends of the streams at that commit and the one
before.

The ledger only saves work. A task skips the read-back if the ledger names the epoch before its own and the same run,
and if the broker has not seen the session of the task before. Then no row of its epoch is stored: an epoch begins after
the commit of the epoch before, and if an earlier run had reached this epoch, this run would not have committed that
one. All other tasks read back the rows that their session has stored: from the ends in the ledger, or from the first
message if the ledger has none. A task of the first epoch that finds no ledger writes one before it stores anything,
with the ends of the streams at the plan of the epoch, so that no row of the epoch lies before them. A lost or outdated
ledger causes a longer read and nothing else.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self

import msgspec

from busway.errors import Timeout
from busway.spark.sink.rows import content
from busway.streams import StreamInfo
from busway.sync.bus import Bus
from busway.topic import matches

log = logging.getLogger("busway.spark")

_COLUMNS: Final = ("id", "topic", "time", "fields", "payload")
_POLL: Final = 0.01
"""Seconds between two checks whether accepted messages are stored."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last committed epoch of a query. `since` is the start time of the broker at that commit."""

    run: str
    epoch: int
    since: int
    places: Mapping[str, int] = field(default_factory=dict)
    """The end of each stream at the commit of the epoch."""
    before: Mapping[str, int] = field(default_factory=dict)
    """The end of each stream at the commit of the epoch before. Empty if unknown."""

    @classmethod
    def read(cls, bus: Bus, query: str) -> Self | None:
        """Return the ledger of a query, or None if there is no readable ledger."""
        for message in reversed(bus.kept(topic(query))):
            try:
                return cls(**json.loads(message.payload))
            except (ValueError, TypeError) as error:
                log.warning("%s is not a readable ledger of a sink and is ignored: %s", message.topic, error)
        return None

    def write(self, bus: Bus, query: str) -> None:
        """Pin the ledger."""
        bus.pin(topic(query), json.dumps(asdict(self)))

    def precedes(self, run: str, epoch: int, since: int) -> bool:
        """Return True if this epoch is the next one of the same run, and the broker has not restarted."""
        return (self.run, self.epoch + 1, self.since) == (run, epoch, since)

    def begin(self, epoch: int) -> Mapping[str, int]:
        """Return the end of each stream before this epoch. For other streams it is their first message."""
        if epoch > self.epoch:
            return self.places
        return self.before if epoch == self.epoch else {}


def label(query: str) -> str:
    """Return the name of a query on the bus. It hides the id, from which the secrets of the publishers are derived."""
    return blake2b(query.encode(), digest_size=16, person=b"busway ledger").hexdigest()


def topic(query: str) -> str:
    """Return the topic of the ledger of a query."""
    return f"spark/sink/{label(query)}"


def record_commit(bus: Bus, query: str, run: str, epoch: int) -> None:
    """Write the ledger for a committed epoch."""
    last = Ledger.read(bus, query)
    before = last.begin(epoch) if last is not None else {}
    Ledger(run, epoch, bus.server.get("since", 0), {info.name: info.next for info in bus.streams()}, before).write(
        bus, query
    )


def begin(bus: Bus, query: str, places: Mapping[str, int]) -> Ledger:
    """Write the first ledger of a query. Call it before the first row is stored."""
    new = Ledger("", -1, 0, dict(places))
    new.write(bus, query)
    return new


@dataclass(slots=True)
class Stored:
    """The messages that a session has stored: the number of copies of each content, and the highest message number."""

    contents: Counter[bytes] = field(default_factory=Counter)
    highest: int = 0

    def take(self, digest: bytes) -> bool:
        """Return True if a copy of this content is left, and remove one copy."""
        left = self.contents.get(digest, 0)
        if left == 1:
            del self.contents[digest]
        elif left:
            self.contents[digest] = left - 1
        return left > 0


def stored(
    bus: Bus,
    session: int,
    begin: Mapping[str, int],
    *,
    timed: bool,
    name: str = "",
    topic: str = "",
    patience: float = 30.0,
) -> Stored:
    """Read back the messages of a session, or with `name` of all sessions of clients with that name.

    The session must have no other connection. `topic`: the only topic that it can have used; empty for any topic.
    """
    found = Stored()
    for info in bus.streams():
        if topic and not _may_store(info, topic):
            continue
        wait_until_stored(bus, info, patience)
        _read(bus, info, session, begin.get(info.name, 0), found, timed=timed, name=name)
    return found


def wait_until_stored(bus: Bus, info: StreamInfo, patience: float) -> None:
    """Wait until a stream has stored or refused all accepted messages, so that a read finds them. Raises Timeout."""
    until = time.monotonic() + patience
    now = info
    while now.next < min(info.end, now.end):
        if time.monotonic() > until:
            raise Timeout(
                f"the stream {info.name!r} has not stored its accepted messages within {patience:g} s; raise the option timeout"
            )
        time.sleep(_POLL)
        now = bus.stream(info.name).info()


def _may_store(info: StreamInfo, topic: str) -> bool:
    return info.name == "default" or any(matches(pattern, topic) for pattern in (*info.topics, *info.former))


def _read(bus: Bus, info: StreamInfo, session: int, begin: int, found: Stored, *, timed: bool, name: str = "") -> None:
    digits = "" if name else f"{session:016x}"
    stream = bus.stream(info.name)
    place = begin if begin <= info.end else 0  # a new stream of this name is read from its beginning
    if 0 < place < info.first:
        lost = info.first - place
        log.warning("%d messages of the stream %r are lost: those of this sink are stored again", lost, info.name)
    unpacked: dict[bytes, dict[str, Any]] = {}
    for batch in stream.arrow(max(place, info.first), where={".id": name or digits}, columns=_COLUMNS):
        columns = (batch.column(name) for name in _COLUMNS)
        ids, topics, times, fields, payloads = columns
        when = times.cast("int64").to_pylist() if timed else [0] * batch.num_rows
        rows = zip(ids.to_pylist(), topics.to_pylist(), when, fields.to_pylist(), payloads.to_pylist(), strict=True)
        for text, on, moment, packed, payload in rows:
            if not text.startswith(digits):
                continue
            if packed not in unpacked:
                unpacked[packed] = msgspec.msgpack.decode(packed) if packed else {}
            found.contents[content(on, unpacked[packed], moment, payload)] += 1
            found.highest = max(found.highest, int(text[16:], 16))
