"""How far a streaming query has come with writing into a bus, and what a publisher has stored there already.

The ledger of a query is one pinned message: which epoch was committed last, by which run of the query, in which life of the
broker, and where its streams ended then and before that epoch. It only saves work. Whoever finds itself in the ledger as the
next of the same run, and is the first of its session that the broker has seen, knows that nothing of its epoch is stored: an
epoch begins when the one before is committed, and an earlier run can't have come to it, since then this run would not have
had to commit the epoch before. Everybody else reads back what its session has stored: from where the epoch can have begun if
the ledger says so, from the first message if it says nothing. A task of the first epoch that finds none writes one before it stores anything, with
where the streams ended when the epoch was planned: so nothing of it lies before. A ledger that is lost later, or old, costs a
longer read, and changes nothing.
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
_LOOK: Final = 0.01
"""Seconds between looks at whether what was taken is stored."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last epoch that a query has committed. `since` is when the broker was started that it was told."""

    run: str
    epoch: int
    since: int
    places: Mapping[str, int] = field(default_factory=dict)
    """Where each stream ended when the epoch was committed."""
    before: Mapping[str, int] = field(default_factory=dict)
    """The same of the epoch before; empty: not known."""

    @classmethod
    def read(cls, bus: Bus, query: str) -> Self | None:
        """The ledger of a query; None if there is none that can be read."""
        for message in reversed(bus.kept(topic(query))):
            try:
                return cls(**json.loads(message.payload))
            except (ValueError, TypeError) as error:
                log.warning("%s is no ledger of a sink: %s", message.topic, error)
        return None

    def write(self, bus: Bus, query: str) -> None:
        bus.pin(topic(query), json.dumps(asdict(self)))

    def precedes(self, run: str, epoch: int, since: int) -> bool:
        """Whether this run goes on with this epoch now, under the same broker."""
        return (self.run, self.epoch + 1, self.since) == (run, epoch, since)

    def begin(self, epoch: int) -> Mapping[str, int]:
        """Where each stream was when this epoch had not begun; streams that are not named: at their first message."""
        if epoch > self.epoch:
            return self.places
        return self.before if epoch == self.epoch else {}


def label(query: str) -> str:
    """What a query is called on the bus. The id of the query is not shown: the secrets of its publishers are made of it."""
    return blake2b(query.encode(), digest_size=16, person=b"busway ledger").hexdigest()


def topic(query: str) -> str:
    return f"spark/sink/{label(query)}"


def note(bus: Bus, query: str, run: str, epoch: int) -> None:
    """An epoch is committed."""
    last = Ledger.read(bus, query)
    before = last.begin(epoch) if last is not None else {}
    Ledger(run, epoch, bus.server.get("since", 0), {info.name: info.next for info in bus.streams()}, before).write(
        bus, query
    )


def begin(bus: Bus, query: str, places: Mapping[str, int]) -> Ledger:
    """A query is about to write its first epoch, from here on. Nothing of it may be stored before this is done."""
    new = Ledger("", -1, 0, dict(places))
    new.write(bus, query)
    return new


@dataclass(slots=True)
class Stored:
    """What a session has stored: how often each content, and the highest number."""

    contents: Counter[bytes] = field(default_factory=Counter)
    highest: int = 0

    def take(self, one: bytes) -> bool:
        """Whether a copy of this is left, which counts for it from now on."""
        left = self.contents.get(one, 0)
        if left == 1:
            del self.contents[one]
        elif left:
            self.contents[one] = left - 1
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
    """Read back what a session has stored; with `name` what all sessions of clients with that name have stored.

    It must have no connection but this one. `topic` is the only one that it can have used.
    """
    found = Stored()
    for info in bus.streams():
        if topic and not _takes(info, topic):
            continue
        settled(bus, info, patience)
        _read(bus, info, session, begin.get(info.name, 0), found, timed=timed, name=name)
    return found


def settled(bus: Bus, info: StreamInfo, patience: float) -> None:
    """Return when everything that a stream had taken is as safe as promised, so that it can be read, or is refused."""
    until = time.monotonic() + patience
    now = info
    while now.next < min(info.end, now.end):
        if time.monotonic() > until:
            raise Timeout(f"the stream {info.name!r} has not stored what it took within {patience:g} s")
        time.sleep(_LOOK)
        now = bus.stream(info.name).info()


def _takes(info: StreamInfo, topic: str) -> bool:
    return info.name == "default" or any(matches(pattern, topic) for pattern in (*info.topics, *info.former))


def _read(bus: Bus, info: StreamInfo, session: int, begin: int, found: Stored, *, timed: bool, name: str = "") -> None:
    digits = "" if name else f"{session:016x}"
    stream = bus.stream(info.name)
    place = begin if begin <= info.end else 0  # a stream of this name that is another one begins anew
    if 0 < place < info.first:
        gone = info.first - place
        log.warning("%d messages of the stream %r are gone: those of this sink are stored again", gone, info.name)
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
