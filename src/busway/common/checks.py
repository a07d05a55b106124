"""Argument checks that raise TypeError or ValueError with the name of the argument; every public function uses them."""

import math
from typing import Literal, overload

from busway.common.durations import duration

_MOST = 2**63 - 1


@overload
def check_timeout(name: str, value: object) -> float | None: ...
@overload
def check_timeout(name: str, value: object, *, forever: Literal[False]) -> float: ...
def check_timeout(name: str, value: object, *, forever: bool = True) -> float | None:
    """Return how long a call may wait, in seconds; below zero it does not wait. `forever`: None is allowed."""
    if type(value) is float and math.isfinite(value):
        return value
    if value is None and forever:
        return None
    seconds = duration(name, value, none=forever)
    if not math.isfinite(seconds):
        advice = "; None waits forever" if forever else ""
        raise ValueError(f"{name} must be a finite length of time, not {value!r}{advice}")
    return seconds


def check_seconds(name: str, value: object, *, zero: bool = True) -> float:
    """Return a finite length of time in seconds, not negative. `zero`: 0 is allowed."""
    seconds = check_timeout(name, value, forever=False)
    if seconds < 0 or (seconds == 0 and not zero):
        raise ValueError(f"{name} must {'not be negative' if zero else 'be above zero'}, but is {value!r}")
    return seconds


def check_count(name: str, value: object) -> None:
    """Require a whole number from 1 to 2**63 - 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be above zero, but is {value!r}")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, but is {value!r}")


def check_type(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Require an instance of one of these types. `wanted` names them in the error."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Require a callable or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, not {value!r}")
