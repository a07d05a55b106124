"""When a lost client tries again: the delays of its schedule, each a little longer or shorter than written.

A machine; chance is handed in. Clients that lost the same server at the same moment don't all come back at the same
moment, because each spreads its delays anew.
"""

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Final

from busway.checks import check_seconds, check_type
from busway.durations import Duration

RECONNECT: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Delays before the attempts to reconnect; the last one repeats."""
JITTER: Final = 0.2
"""The part of a delay by which it may be longer or shorter."""


class Schedule:
    """Delays in seconds; the last one repeats. Without any there is no coming back. `chance` gives numbers from 0 to 1."""

    def __init__(self, delays: Sequence[Duration] | None, jitter: float, chance: Callable[[], float]) -> None:
        given: object = delays  # a str is a sequence too
        kinds = NoneType if isinstance(given, str | bytes) else (Sequence, NoneType)
        check_type("reconnect", given, kinds, "a list of delays in seconds, or None for never")
        waits = tuple(check_seconds(f"reconnect[{place}]", delay) for place, delay in enumerate(delays or ()))
        if isinstance(jitter, bool) or not isinstance(jitter, int | float):
            raise TypeError(f"jitter must be a number from 0 to 1, not {jitter!r}")
        check_seconds("jitter", jitter)
        if jitter > 1:
            raise ValueError(f"jitter is a part of each delay, from 0 to 1, not {jitter!r}")
        self._delays = waits
        self._jitter = jitter
        self._chance = chance
        self._step = 0

    def __bool__(self) -> bool:
        return bool(self._delays)

    def begin(self) -> None:
        """From the first delay on."""
        self._step = 0

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = self._delays[min(self._step, len(self._delays) - 1)]
        self._step += 1
        return delay * (1 + self._jitter * (2 * self._chance() - 1))
