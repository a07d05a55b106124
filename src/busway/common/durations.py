"""Lengths of time as users give them: seconds, a timedelta, or text. Values only."""

import re
from datetime import timedelta
from typing import Any, Final, TypeAlias

Duration: TypeAlias = float | str | timedelta
"""A length of time: seconds, text such as 5s, 1h30m or 7d, or a timedelta."""

LONGEST: Final = 1e10
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


_FORMS: Final = "a length of time: seconds, text such as 5s, 1h30m or 7d, or a timedelta"


def duration(name: str, value: object, *, none: bool = False) -> float:
    """A length of time in seconds, of whatever size. `none`: the error says that None is allowed, too."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        parts = _PARTS.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(
                f"{name}: {value!r} is no length of time; give seconds, text such as 5s, 1h30m or 7d, or a timedelta"
            )
        return float(sum(float(number) * _UNITS[unit] for number, unit in parts))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {_FORMS}{', or None' if none else ''}, not {value!r}")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """A length of time above 0, in seconds."""
    found = duration(name, value)
    if not 0 < found < LONGEST:
        raise ValueError(f"{name} must be above 0 and below {LONGEST:.0f} seconds, but is {value!r}")
    return found
