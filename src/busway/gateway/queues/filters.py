"""Filters of channels and subscribers: which tags they take. Values only.

`;` separates alternatives and `.` parts of a tag; `*` is one part, `#` the rest, which may be nothing.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Takes: TypeAlias = Callable[[object], bool]

LONGEST: Final = 127
"""Bytes of a filter."""


def check(text: str) -> str:
    """A filter that can be. Raises ValueError."""
    if len(text.encode()) > LONGEST:
        raise ValueError(f"a filter has at most {LONGEST} bytes")
    return text


def takes(text: str | None) -> Takes | None:
    """Whether a message with this tag is taken; None: all are."""
    if not text:
        return None
    if not _is_pattern(text):
        return lambda tag: tag == text
    found = re.compile(_regex(text))
    return lambda tag: type(tag) is str and found.fullmatch(tag) is not None


def rule(text: str | None) -> dict[str, Any]:
    """The same as the rules of a channel."""
    if not text:
        return {}
    return {"tag": re.compile(_regex(text)) if _is_pattern(text) else [text]}


def _is_pattern(text: str) -> bool:
    return ";" in text or any(part in {"*", "#"} for part in text.split("."))


def _regex(text: str) -> str:
    return "|".join(_one(one) for one in text.split(";") if one) or r"[^\s\S]"


def _one(text: str) -> str:
    made = ""
    for place, part in enumerate(text.split(".")):
        if part == "#":
            return made + (r"(?:\..*)?" if place else ".*")
        made += (r"\." if place else "") + (r"[^.]+" if part == "*" else re.escape(part))
    return made
