"""Converts lengths of time that a user gives as seconds, a timedelta or text.

Every public function with a timeout, lease or age calls `duration()` or `seconds()`; configuration classes declare
such fields with `Seconds`.
"""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

Duration: TypeAlias = float | str | timedelta
"""A length of time: seconds, text such as 5s, 1h30m or 7d, or a timedelta."""

if TYPE_CHECKING:

    class Seconds:
        """A dataclass field that is set from a Duration and read as a float; `Seconds(5.0)` is its default value.

        Type checkers see this descriptor. At run time Seconds is float, and `__post_init__` converts the value.
        """

        def __init__(self, default: float) -> None: ...
        def __get__(self, instance: object, owner: type | None = None) -> float: ...
        def __set__(self, instance: object, value: Duration) -> None: ...

else:
    Seconds = float

LONGEST: Final = 1e10
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


_FORMS: Final = "a length of time: seconds, text such as 5s, 1h30m or 7d, or a timedelta"


def duration(name: str, value: object, *, none: bool = False) -> float:
    """A length of time in seconds, without a limit. `none`: the error says that None is allowed, too."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        parts = _PARTS.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(
                f"{name}: {value!r} is not a length of time; give seconds, text such as 5s, 1h30m or 7d, or a timedelta"
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
