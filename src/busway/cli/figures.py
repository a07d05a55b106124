"""Figures of the broker as people read them: in the order of interest, with units, and without those that are zero. Values; no I/O."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from busway.cli import values

_DURATIONS: Final = {"max_age", "once", "lease", "uptime", "max_processing", "takeover"}
_TIMES: Final = {"time", "held_since"}
_SIZES: Final = {"bytes", "frame", "topic_bytes", "outbox"}
_UNLIMITED: Final = {"lease", "max_deliveries"}
"""Settings whose zero means none."""


def ordered(
    figures: Mapping[str, Any], first: Collection[str] = (), *, everything: bool = False, sizes: Collection[str] = ()
) -> dict[str, str]:
    """Lines of a table. `first` names the figures that are always shown, in their order.

    Other figures follow, but only if they are neither zero nor empty, unless `everything` is asked for. `sizes` names
    figures in bytes that their names do not show.
    """
    names = [*(name for name in first if name in figures), *(name for name in figures if name not in first)]
    return {
        name.replace("_", " "): _text(name, figures[name], sizes)
        for name in names
        if everything or name in first or not empty(figures[name])
    }


def empty(value: object) -> bool:
    return value is None or value is False or value in (0, "", [], ())


def _text(name: str, value: Any, sizes: Collection[str]) -> str:
    if value is None or value in ("", [], ()) or (name in _UNLIMITED and not value):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _TIMES:
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    if name in _DURATIONS:
        return values.shown_duration(round(value, 3)) if name != "uptime" else elapsed(value)
    if name in _SIZES or name in sizes or name.endswith("_bytes"):
        return values.shown_size(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def elapsed(seconds: float) -> str:
    """A length of time in its two largest units: 3d 4h, 5m 2s."""
    left = round(max(seconds, 0))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
