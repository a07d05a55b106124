"""How people write the length of an interval."""

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS: Final = "s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?"


def length(every: str | timedelta) -> timedelta:
    """The length of an interval. Raises ValueError."""
    found = every if isinstance(every, timedelta) else None
    if isinstance(every, str):
        said = re.fullmatch(rf"\s*([0-9]+(?:\.[0-9]+)?)?\s*({_WORDS})\s*", every)
        if said is not None:
            found = timedelta(seconds=float(said[1] or 1) * _UNITS[said[2][0]])
    if found is None or not timedelta(milliseconds=1) <= found <= timedelta(days=366):
        raise ValueError(f"the length of an interval can't be {every!r}; give one like '1 minute', '30s' or '1h'")
    return found
