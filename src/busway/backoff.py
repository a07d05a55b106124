"""How long a channel waits before it redelivers a message that failed: a list of delays, or delays that grow. Values only."""

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
"""The most delays of a list."""
_HELP: Final = (
    "give a list of delays such as ['1s', '5s', '30s'], a busway.Backoff, or [] to redeliver at once; "
    "as text: 1s,5s,30s or first=1s,factor=2,limit=10m,jitter=0.1 or none"
)
_SPAN: Final = 1 << 64


@dataclass(frozen=True, init=False, slots=True)
class Backoff:
    """Delays that grow: `first`, then each one `factor` times as long as the one before, up to `limit`.

    Each delay is made longer or shorter by up to `jitter`, a part of 1, so that messages that failed together do not
    all come back together.
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
        """Seconds after so many failures. The key varies them: with the same one they are the same."""
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
"""Seconds after the first failure, the second and so on, the last one for all that follow; none: no delay."""

USUAL: Final[tuple[float, ...]] = (1.0, 5.0, 30.0, 120.0, 600.0)
NONE: Final = "none"


def delay_of(backoff: Delays, failures: int, key: str) -> float:
    """Seconds until a message is redelivered that has failed so many times."""
    if isinstance(backoff, Backoff):
        return backoff.delay(failures, key)
    return backoff[min(failures, len(backoff)) - 1] if backoff else 0.0


def check_delays(backoff: Delays) -> None:
    """Raise ValueError for delays that a channel can't have."""
    if isinstance(backoff, Backoff):
        return
    if len(backoff) > MOST:
        raise ValueError(f"backoff: {len(backoff)} delays are too many, {MOST} can be given")
    for one in backoff:
        if not 0 <= one < LONGEST:
            raise ValueError(f"backoff: a delay must be from 0 to below {LONGEST:.0f} seconds, but is {one!r}")


def backoff_of(value: Any) -> Delays:
    """What a user gives as backoff: delays, one delay, text, or a Backoff."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str):
        if value.strip() == NONE:
            return ()
        if "=" in value:
            return _grown(value)
        value = value.split(",")
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        value = [value] if value else []
    if not isinstance(value, list | tuple):
        raise TypeError(f"backoff: {value!r} is no list of delays: {_HELP}")
    delays = tuple(_delay(one) for one in value)
    check_delays(delays)
    return delays


def shown(backoff: Delays) -> str:
    """As text that backoff_of() reads."""
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


def _grown(text: str) -> Backoff:
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (one.strip() for one in part.partition("="))
        if name not in Backoff.__dataclass_fields__ or name in given or not value:
            raise ValueError(f"backoff: {part.strip()!r} in {text!r} can't be read: {_HELP}")
        if name in {"factor", "jitter"}:
            try:
                given[name] = float(value)
            except ValueError:
                raise ValueError(f"backoff: {name} must be a number, but is {value!r}") from None
        else:
            given[name] = value
    return Backoff(**given)


_UNITS: Final[Mapping[str, float]] = {"h": 3600.0, "m": 60.0, "s": 1.0}


def _shown(delay: float) -> str:
    if not delay:
        return "0s"
    for unit, size in _UNITS.items():
        if delay >= size and delay % size == 0:
            return f"{delay / size:.0f}{unit}"
    milliseconds = round(delay * 1000, 3)
    return f"{milliseconds:g}ms" if delay < 1 else f"{delay!r}s"
