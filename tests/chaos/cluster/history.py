"""The history of the clients, and a machine that checks whether it is consistent.

A message is known by its payload to publishers, and by its place (broker and offset) to consumers. An answered acknowledgement is a
promise: the message is done and comes to nobody again. One without an answer may have been noted or not, so the message may come again or not.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple


class Place(NamedTuple):
    broker: str
    offset: int


class Stored(NamedTuple):
    """A publish that was answered."""

    place: Place
    time: float
    moved: bool
    """Its connection was lost while it waited for its answer, so it was sent again."""


class Ledger:
    """Everything that was told in one trial."""

    def __init__(self) -> None:
        self.stored: dict[str, Stored] = {}
        self.failed: dict[str, str] = {}
        self.handed: dict[Place, list[float]] = defaultdict(list)
        self.acked: dict[Place, float] = {}
        self.unsure: dict[Place, str] = {}
        """Why the last acknowledgement of it had no answer."""
        self.late = 0
        self.doubtful = 0
        """Publishes that were sent again, and of which their publisher was told that they may be stored twice."""
        self.places: dict[str, set[Place]] = defaultdict(set)
        self.wrong: list[str] = []
        self._payloads: dict[Place, str] = {}

    def note(self, client: str, record: list[Any]) -> None:
        """A client tells something."""
        what, when, *more = record
        match what:
            case "stored":
                number, broker, offset, moved = more
                self.stored[f"{client} {number}"] = Stored(Place(broker, offset), when, moved)
            case "failed":
                number, text = more
                self.failed[f"{client} {number}"] = text
            case "got":
                broker, offset, payload = more
                self._got(client, Place(broker, offset), payload, when)
            case "acked":
                self._acked(client, Place(*more), when)
            case "unsure":
                broker, offset, why = more
                self.unsure[Place(broker, offset)] = why
            case "doubtful":
                self.doubtful += more[0]
            case "late":
                self.late += 1

    def missing(self, until: float | None = None) -> list[str]:
        """Messages that were acknowledged to their publisher, and that nobody has acknowledged since."""
        return [
            payload
            for payload, one in self.stored.items()
            if (until is None or one.time <= until) and one.place not in self.acked and one.place not in self.unsure
        ]

    def twice(self) -> list[str]:
        """Messages that are stored at more than one place."""
        return [payload for payload, places in self.places.items() if len(places) > 1]

    def again(self) -> int:
        """How often a message came once more."""
        return sum(len(times) - 1 for times in self.handed.values())

    def unanswered(self) -> list[Place]:
        """Consumed once, and the answer to the acknowledgement was lost for good."""
        return [place for place in self.unsure if place not in self.acked]

    def waits(self) -> list[float]:
        """How long each message waited, from the answer to its publisher until somebody had it first."""
        return [
            max(self.handed[one.place][0] - one.time, 0.0) for one in self.stored.values() if one.place in self.handed
        ]

    def check(self) -> list[str]:
        """What is wrong so far."""
        strange = [
            f"{payload!r} is stored twice, at {sorted(self.places[payload])}, and its publisher was never away"
            for payload in self.twice()
            if payload in self.stored and not self.stored[payload].moved
        ]
        return self.wrong + strange

    def finish(self, history: Collection[tuple[Place, str]]) -> list[str]:
        """What is wrong in the end, when all was answered; the history is what a stranger reads, in the order it came."""
        found = dict(history)
        wrong = self.check() + [f"{payload!r} at {self.stored[payload].place} is lost" for payload in self.missing()]
        if len(found) < len(history):
            wrong.append(f"{len(history) - len(found)} messages came twice to who reads the history")
        for payload, one in self.stored.items():
            if found.get(one.place) != payload:
                wrong.append(f"{payload!r} was to be at {one.place}, where the history has {found.get(one.place)!r}")
        ends: dict[str, int] = defaultdict(lambda: -1)
        for place, payload in history:
            if place.offset != ends[place.broker] + 1:
                wrong.append(f"the history of {place.broker} goes on from {ends[place.broker]} to {place.offset}")
            ends[place.broker] = place.offset
            if payload not in self.stored and payload not in self.failed:
                wrong.append(f"{payload!r} at {place} was published by nobody")
            if place not in self.acked and place not in self.unsure:
                wrong.append(f"{payload!r} at {place} was never consumed")
        return wrong

    # Two clients tell by two ways: what was first is seen by the clock, not by the order of the records.

    def _got(self, client: str, place: Place, payload: str, when: float) -> None:
        if when > self.acked.get(place, when):
            self._after(client, place, payload, when - self.acked[place])
        if self._payloads.setdefault(place, payload) != payload:
            self.wrong.append(f"{client} got {payload!r} at {place}, where {self._payloads[place]!r} was")
        self.places[payload].add(place)
        self.handed[place].append(when)

    def _acked(self, client: str, place: Place, when: float) -> None:
        payload = self._payloads.get(place, "")
        if place in self.acked:
            self.wrong.append(f"{client} acknowledged {payload!r} at {place}, which was acknowledged already")
        self.acked[place] = min(when, self.acked.get(place, when))
        if (last := max(self.handed[place], default=0.0)) > when:
            self._after("somebody", place, payload, last - when)

    def _after(self, client: str, place: Place, payload: str, seconds: float) -> None:
        self.wrong.append(f"{client} got {payload!r} at {place} {seconds:.3f} s after it was acknowledged")
