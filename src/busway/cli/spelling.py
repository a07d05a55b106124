"""Patterns in the spelling of other systems: a hint how Busway spells them. Values and rules."""

import re
from collections.abc import Callable
from typing import Final

_WORD: Final = r"[\w*+-]+"
_DOTTED: Final = re.compile(rf"{_WORD}(\.{_WORD})+(\.[>#])?|{_WORD}\.[>#]|[>#]")
_SEGMENT: Final = {"+": "*", ">": "**", "#": "**"}


def hint(topic: str) -> str | None:
    """What to say of a topic or pattern of NATS (`a.*.>`), AMQP (`a.*.#`) or MQTT (`a/+/#`). None if it may be one of Busway."""
    if topic.startswith("re:"):
        return None
    dotted = "/" not in topic and _DOTTED.fullmatch(topic) is not None
    parts = topic.split("." if dotted else "/")
    foreign = not {*parts}.isdisjoint(_SEGMENT)
    if not foreign and not (dotted and ("*" in parts or len(parts) > 2)):
        return None  # such as app.log, a name of a file or a host
    ours = "/".join(_SEGMENT.get(part, part) for part in parts)
    return f"topics are paths such as a/b, and wildcards are * and **: did you mean {ours!r} instead of {topic!r}?"


def tell(note: Callable[[str], None], *topics: str) -> None:
    """Print the hints for these, if there are any."""
    for topic in topics:
        if (text := hint(topic)) is not None:
            note(text)
