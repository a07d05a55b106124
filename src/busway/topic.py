"""Topics: a path `a/b/c`; `*` stands for one fragment, `**` for any number, `re:` begins a regular expression.

The grammar and the matcher live in the engine, so that client and broker can't disagree.
"""

from typing import Final

from busway._core import check_pattern, check_topic, matches

__all__ = ["RESERVED", "check_pattern", "check_topic", "is_reserved", "matches"]

RESERVED: Final = "$bus"
"""First fragment of the topics that belong to the broker; only requests may name them."""


def is_reserved(topic: str) -> bool:
    """Whether a checked topic belongs to the broker."""
    return topic.startswith(RESERVED) and (len(topic) == len(RESERVED) or topic[len(RESERVED)] == "/")
