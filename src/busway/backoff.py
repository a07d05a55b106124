"""Redelivery delays of a channel for messages that failed: a list of delays, or exponential backoff.

Clients parse what a user gives with `backoff_of()`, and the broker's channels compute delays with `delay_of()`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from busway.common.durations import LONGEST, seconds

Delay: TypeAlias = float | str | timedelta
"""Seconds, text such as 5s, or a timedelta."""

MOST: Final = 64
"""The maximum length of a list of delays."""
_HELP: Final = (
    "give a list of delays such as ['1s', '5s', '30s'], a busway.Backoff, or [] to redeliver at once; "
    "as text: 1s,5s,30s or first=1s,factor=2,limit=10m,jitter=0.1 or none"
)
_SPAN: Final = 1 << 64


@dataclass(frozen=True, init=False, slots=True)
class Backoff:
    """Exponential backoff: the delay is `first`, then grows by `factor` after each failure, up to `limit`.

    Each delay varies by up to the fraction `jitter` in both directions, which spreads the redelivery of messages that
    failed at the same time.
    """

    first: float
    factor: float
    limit: float
    jitter: float

    def __init__(self, first: Delay = 1.0, factor: float = 2.0, limit: Delay = 600.0, jitter: float = 0.1) -> None:
        for name, value in (("first", first), ("factor", factor), ("limit", limit), ("jitter", jitter)):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        for name in ("first", "limit"):
            object.__setattr__(self, name, seconds(f"backoff: {name}", getattr(self, name)))
        for name, least, most in (("factor", 1.0, 1000.0), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"backoff: {name} must be a number from {least:g} to {most:g}, not {value!r}")
            if not least <= value <= most:
                raise ValueError(f"backoff: {name} must be from {least:g} to {most:g}, but is {value!r}")
            object.__setattr__(self, name, float(value))
        if self.limit < self.first:
            raise ValueError(f"backoff: limit must be at least first ({self.first:g} s), but is {self.limit:g} s")

    def __str__(self) -> str:
        return f"first={_shown(self.first)},factor={self.factor:g},limit={_shown(self.limit)},jitter={self.jitter:g}"

    def delay(self, failures: int, key: str) -> float:
        """Return the delay in seconds after this many failures. The jitter depends on `key` and `failures` only."""
        wait = self.limit
        if self.factor == 1.0:
            wait = self.first
        elif failures - 1 < math.log(self.limit / self.first, self.factor):
            wait = self.first * self.factor ** (failures - 1)
        if self.jitter:
            digest = hashlib.blake2b(f"{key} {failures}".encode(), digest_size=8).digest()
            wait *= 1.0 + self.jitter * (2.0 * int.from_bytes(digest) / _SPAN - 1.0)
        return wait


Delays: TypeAlias = tuple[float, ...] | Backoff
"""Seconds after the first failure, the second and so on; the last delay repeats. Empty: no delay."""

USUAL: Final[tuple[float, ...]] = (1.0, 5.0, 30.0, 120.0, 600.0)
NONE: Final = "none"


def delay_of(backoff: Delays, failures: int, key: str) -> float:
    """Return the seconds until a message is redelivered that has failed this many times."""
    if isinstance(backoff, Backoff):
        return backoff.delay(failures, key)
    return backoff[min(failures, len(backoff)) - 1] if backoff else 0.0


def check_delays(backoff: Delays) -> None:
    """Raise ValueError if there are too many delays, or one is negative or too long."""
    if isinstance(backoff, Backoff):
        return
    if len(backoff) > MOST:
        raise ValueError(f"backoff: {len(backoff)} delays are too many; give at most {MOST}")
    for delay in backoff:
        if not 0 <= delay < LONGEST:
            raise ValueError(f"backoff: a delay must be from 0 to below {LONGEST:.0f} seconds, but is {delay!r}")


def backoff_of(value: Any) -> Delays:
    """Convert the backoff argument of a user: a list of delays, one delay, text, or a Backoff."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str):
        if value.strip() == NONE:
            return ()
        if "=" in value:
            return _parse_exponential(value)
        value = value.split(",")
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        value = [value] if value else []
    if not isinstance(value, list | tuple):
        raise TypeError(f"backoff: {value!r} is not a list of delays: {_HELP}")
    delays = tuple(_delay(item) for item in value)
    check_delays(delays)
    return delays


def shown(backoff: Delays) -> str:
    """Format delays as text that backoff_of() parses."""
    if isinstance(backoff, Backoff):
        return str(backoff)
    return ",".join(map(_shown, backoff)) or NONE


def _delay(value: Any) -> float:
    if isinstance(value, str):
        value = value.strip()
        if not value:
            raise ValueError(f"backoff: a delay is empty: {_HELP}")
        try:
            value = float(value)  # seconds
        except ValueError:
            value = 0 if value == "0s" else value
    if isinstance(value, timedelta) and not value:
        return 0.0
    return 0.0 if value == 0 and not isinstance(value, bool) else seconds("backoff", value)


def _parse_exponential(text: str) -> Backoff:
    parameters: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (half.strip() for half in part.partition("="))
        if name not in Backoff.__dataclass_fields__ or name in parameters or not value:
            raise ValueError(f"backoff: {part.strip()!r} in {text!r} is not valid: {_HELP}")
        if name in {"factor", "jitter"}:
            try:
                parameters[name] = float(value)
            except ValueError:
                raise ValueError(f"backoff: {name} must be a number, but is {value!r}") from None
        else:
            parameters[name] = value
    return Backoff(**parameters)


_UNITS: Final[Mapping[str, float]] = {"h": 3600.0, "m": 60.0, "s": 1.0}


def _shown(delay: float) -> str:
    if not delay:
        return "0s"
    for unit, size in _UNITS.items():
        if delay >= size and delay % size == 0:
            return f"{delay / size:.0f}{unit}"
    milliseconds = round(delay * 1000, 3)
    return f"{milliseconds:g}ms" if delay < 1 else f"{delay!r}s"
