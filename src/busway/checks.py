"""Arguments as they must be: errors that name the argument, raised before anything is done with it."""

import math

_MOST = 2**63 - 1


def check_timeout(name: str, value: object, *, forever: bool = True) -> None:
    """How long a call may wait: a finite number of seconds; one below zero is over at once. `forever`: may be None."""
    if (type(value) is float and math.isfinite(value)) or (value is None and forever):
        return
    wanted = "a number of seconds or None" if forever else "a number of seconds"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    if not math.isfinite(value):
        advice = "; None waits for ever" if forever else ""
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}{advice}")


def check_seconds(name: str, value: float, *, zero: bool = True) -> None:
    """A finite number of seconds, not negative; `zero`: may be 0."""
    check_timeout(name, value, forever=False)
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must {'not be negative' if zero else 'be above zero'}, but is {value!r}")


def check_count(name: str, value: object) -> None:
    """A whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be above zero, but is {value!r}")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, but is {value!r}")


def check_type(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """An instance of one of these; `wanted` says so in words."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, not {value!r}")
