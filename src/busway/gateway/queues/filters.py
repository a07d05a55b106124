"""Tag filters of channels and subscribers: parses them and turns them into predicates or channel rules. Values only.

`;` separates alternatives and `.` parts of a tag. `*` matches one part, `#` the rest, which may be empty. Commands and
queues call it.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

TagPredicate: TypeAlias = Callable[[object], bool]

LONGEST: Final = 127
"""Largest size of a filter, in bytes."""


def check(text: str) -> str:
    """The filter itself. Raises ValueError if it is too long."""
    if len(text.encode()) > LONGEST:
        raise ValueError(f"the filter is too long: it may have {LONGEST} bytes")
    return text


def takes(text: str | None) -> TagPredicate | None:
    """A predicate that is true for a tag that the filter matches. None: an empty filter matches every message."""
    if not text:
        return None
    if not _is_pattern(text):
        return lambda tag: tag == text
    found = re.compile(_regex(text))
    return lambda tag: type(tag) is str and found.fullmatch(tag) is not None


def rule(text: str | None) -> dict[str, Any]:
    """The filter as the rules of a channel."""
    if not text:
        return {}
    return {"tag": re.compile(_regex(text)) if _is_pattern(text) else [text]}


def _is_pattern(text: str) -> bool:
    return ";" in text or any(part in {"*", "#"} for part in text.split("."))


def _regex(text: str) -> str:
    return "|".join(_alternative(alternative) for alternative in text.split(";") if alternative) or r"[^\s\S]"


def _alternative(text: str) -> str:
    regex = ""
    for index, part in enumerate(text.split(".")):
        if part == "#":
            return regex + (r"(?:\..*)?" if index else ".*")
        regex += (r"\." if index else "") + (r"[^.]+" if part == "*" else re.escape(part))
    return regex
