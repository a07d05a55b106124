"""Lengths of time as users give them: seconds, a timedelta, or text. Values only."""

import re
from datetime import timedelta
from typing import Any, Final

LONGEST: Final = 1e10
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(name: str, value: Any) -> float:
    """A length of time: seconds, a timedelta, or text such as 90s, 1h30m, 7d."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, str):
        parts = _PARTS.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(f"{name}: {value!r} is no length of time; write 90s, 1h30m or 7d")
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a length of time (seconds, a timedelta, or text such as 7d), not {value!r}")
    if not 0 < value < LONGEST:
        raise ValueError(f"{name} must be above 0 and below {LONGEST:.0f} seconds, but is {value!r}")
    return float(value)
