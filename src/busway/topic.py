"""Topic grammar: a path `a/b/c`; `*` stands for one segment, `**` for any number, `re:` begins a regular expression.

The engine implements the grammar and the matcher; this module exports them to client, broker and gateway.
"""

from typing import Final

from busway._core import check_pattern, check_topic, matches

__all__ = ["RESERVED", "check_pattern", "check_topic", "is_reserved", "matches"]

RESERVED: Final = "$bus"
"""First segment of the broker's own topics. Only requests may use them."""


def is_reserved(topic: str) -> bool:
    """True if a valid topic is one of the broker's own."""
    return topic.startswith(RESERVED) and (len(topic) == len(RESERVED) or topic[len(RESERVED)] == "/")
