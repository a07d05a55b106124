"""Expiry and delivery time of stored messages. Values only."""

from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from busway.common import environment
from busway.common.durations import seconds
from busway.positions import moment

Lasting: TypeAlias = float | str | timedelta
"""A duration: seconds, text such as 90s or 7d, or a timedelta."""

_LONGEST: Final = 100 * 365.25 * 86400


def times_of(expires: Lasting | datetime | None, delay: Lasting | None, deliver_at: datetime | None) -> tuple[int, int]:
    """Expiry and delivery time of a message in nanoseconds since 1970; 0: it never expires, it is due at once."""
    now = environment.time_ns()
    if delay is not None and deliver_at is not None:
        raise ValueError("give delay or deliver_at, not both")
    due = 0
    if delay:
        due = now + _nanoseconds("delay", delay)
    elif deliver_at is not None:
        due = _moment("deliver_at", deliver_at)
    if expires is None:
        return 0, due
    return (
        _moment("expires", expires) if isinstance(expires, datetime) else now + _nanoseconds("expires", expires)
    ), due


def _nanoseconds(name: str, value: Lasting) -> int:
    length = seconds(name, value)
    if length > _LONGEST:
        raise ValueError(f"{name} must be less than a hundred years, but is {value!r}")
    return int(length * 1e9)


def _moment(name: str, value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{name} must be a datetime with a time zone, but is {value!r}")
    return moment(name, value)
