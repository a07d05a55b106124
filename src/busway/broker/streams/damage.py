"""Reports the damage of a native log: each place once."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busway._core import Damage


class DamageReport:
    """The damage of one log that was reported so far. `name` is what the messages begin with."""

    def __init__(self, log: logging.Logger, name: str) -> None:
        self._log = log
        self._name = name
        self._reported: frozenset[Damage] = frozenset()

    def report(self, damage: "Iterable[Damage]") -> None:
        """Log damage that was not reported yet."""
        found = list(damage)
        for entry in found:
            if entry in self._reported:
                continue
            file, position, begin, end, fault = entry
            place = f"{fault} in {file} at byte {position}"
            if end is None:  # a record that was being written when the broker ended
                self._log.warning("%s: %s: from offset %d on", self._name, place, begin)
            elif end == begin:
                self._log.warning("%s: %s; nothing is lost", self._name, place)
            else:
                self._log.error("%s: %s: offsets %d to %d", self._name, place, begin, end - 1)
        self._reported = frozenset(found)
