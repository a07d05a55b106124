"""What a node should have as other nodes have it, and could not make, change or remove: why, and when it is tried again.

A machine: time is handed in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from busway.cluster.definitions.definitions import Definition

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts, the last one again and again."""


@dataclass(slots=True)
class Missing:
    """One that is not as it should be."""

    one: Definition
    error: str
    tries: int = 1
    due: float = 0.0
    told: bool = False
    """People were told of it. Of a channel they are not if its stream is lacking, too."""


class MissingDefinitions:
    """All of one node, by key."""

    def __init__(self) -> None:
        self._lacks: dict[str, Missing] = {}
        self._next = inf
        """Nothing is due before."""

    def __iter__(self) -> Iterator[Missing]:
        return iter(self._lacks.values())

    def __len__(self) -> int:
        return len(self._lacks)

    def get(self, key: str) -> Missing | None:
        return self._lacks.get(key)

    def found(self, one: Definition, error: str, now: float) -> None:
        """It was so before the node started: it is tried at once, and told if that fails."""
        self._lacks[one.key] = Missing(one, error, due=now)
        self._next = min(self._next, now)

    def failed(self, one: Definition, error: str, now: float) -> bool:
        """It could not be done; whether people are to be told, as of the same thing they are once."""
        before = self._lacks.get(one.key)
        if before is not None and before.one != one:
            before = None
        tries = 1 if before is None else before.tries + 1
        lack = self._lacks[one.key] = Missing(one, error, tries, now + PAUSES[min(tries, len(PAUSES)) - 1])
        self._next = min(self._next, lack.due)
        known = before is not None and before.told
        news = not self._waits(lack) and not (before is not None and known and before.error == error)
        lack.told = known or news
        return news

    def made(self, key: str) -> bool:
        """It is as it should be, or need not be any more; whether people were told of it."""
        lack = self._lacks.pop(key, None)
        return lack is not None and lack.told

    def hurry(self, now: float, stream: str | None = None) -> None:
        """Something has changed that may help: with this stream, or with any."""
        for lack in self._lacks.values():
            if stream in {None, lack.one.stream} and lack.due != inf:
                lack.due = min(lack.due, now)
                self._next = min(self._next, now)

    def ready(self, now: float) -> list[Definition]:
        """Those to be tried now: streams before channels, and what is to be removed, which makes room, before all."""
        if now < self._next:
            return []
        ready = [lack for lack in self._lacks.values() if lack.due <= now and not self._waits(lack)]
        for lack in ready:
            lack.due = inf  # until it is known what became of it
        self._next = min((lack.due for lack in self._lacks.values() if not self._waits(lack)), default=inf)
        return sorted((lack.one for lack in ready), key=lambda one: (one.spec is not None, bool(one.channel)))

    def deadline(self) -> float | None:
        """When ready() may have something."""
        return None if self._next == inf else self._next

    def _waits(self, lack: Missing) -> bool:
        """Whether it is a channel that can't be before its stream is."""
        return bool(lack.one.channel) and lack.one.stream in self._lacks
