"""Definitions that a node could not apply: why each failed, and when it is retried.

`agreement` calls this module and passes the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from busway.cluster.definitions.definitions import Definition

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts. The last pause repeats."""


@dataclass(slots=True)
class Missing:
    """One definition that is not applied."""

    definition: Definition
    error: str
    tries: int = 1
    due: float = 0.0
    reported: bool = False
    """The failure was reported. It is not for a channel whose stream is missing too."""


class MissingDefinitions:
    """The missing definitions of one node, by key."""

    def __init__(self) -> None:
        self._missing: dict[str, Missing] = {}
        self._next = inf
        """The time before which no attempt is due."""

    def __iter__(self) -> Iterator[Missing]:
        return iter(self._missing.values())

    def __len__(self) -> int:
        return len(self._missing)

    def get(self, key: str) -> Missing | None:
        return self._missing.get(key)

    def found(self, definition: Definition, error: str, now: float) -> None:
        """Add a definition that was missing before the start. It is tried at once and reported if that fails."""
        self._missing[definition.key] = Missing(definition, error, due=now)
        self._next = min(self._next, now)

    def failed(self, definition: Definition, error: str, now: float) -> bool:
        """An attempt failed. Returns whether to report it: the same failure is reported once."""
        before = self._missing.get(definition.key)
        if before is not None and before.definition != definition:
            before = None
        tries = 1 if before is None else before.tries + 1
        missing = self._missing[definition.key] = Missing(
            definition, error, tries, now + PAUSES[min(tries, len(PAUSES)) - 1]
        )
        self._next = min(self._next, missing.due)
        reported = before is not None and before.reported
        new = not self._waits(missing) and not (before is not None and reported and before.error == error)
        missing.reported = reported or new
        return new

    def made(self, key: str) -> bool:
        """The definition is applied or obsolete. Returns whether its failure was reported."""
        missing = self._missing.pop(key, None)
        return missing is not None and missing.reported

    def hurry(self, now: float, stream: str | None = None) -> None:
        """Retry soon: this stream, or any if None, has changed."""
        for missing in self._missing.values():
            if stream in {None, missing.definition.stream} and missing.due != inf:
                missing.due = min(missing.due, now)
                self._next = min(self._next, now)

    def ready(self, now: float) -> list[Definition]:
        """The definitions to try now: removals first, then streams, then channels."""
        if now < self._next:
            return []
        ready = [missing for missing in self._missing.values() if missing.due <= now and not self._waits(missing)]
        for missing in ready:
            missing.due = inf  # until the attempt has ended
        self._next = min((missing.due for missing in self._missing.values() if not self._waits(missing)), default=inf)
        return sorted(
            (missing.definition for missing in ready),
            key=lambda definition: (definition.spec is not None, bool(definition.channel)),
        )

    def deadline(self) -> float | None:
        """The time of the next attempt."""
        return None if self._next == inf else self._next

    def _waits(self, missing: Missing) -> bool:
        """Whether this is a channel whose stream is missing too."""
        return bool(missing.definition.channel) and missing.definition.stream in self._missing
