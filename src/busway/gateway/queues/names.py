"""Conversion between names of the JSON door and names of streams and channels, which allow fewer characters.

A valid stream or channel name stays as it is. Any other name is escaped in base64; a topic too long for that is
hashed. `queues.py` and `consumers.py` call it. A queue is a topic with its own stream. Values only.
"""

import base64
import hashlib
from typing import Final

from busway.streams import DEFAULT, is_name

DELETE_ON_EXIT: Final = 1 << 0
EXCLUSIVE: Final = 1 << 1
PAUSE: Final = 1 << 3
MASKS: Final = (1 << 31) - 1
"""Largest mask; it fits in the integers of all clients."""

_ESCAPED: Final = "j."
_HASHED: Final = "jh."
_ROOM: Final = 46
"""Bytes of a name whose escaped form fits into 64 characters."""


def stream_name(topic: str) -> str:
    """The name of the stream of a queue; the name of a queue is the topic that its stream takes."""
    if is_name(topic) and topic != DEFAULT and not topic.startswith((_ESCAPED, _HASHED)):
        return topic
    data = topic.encode()
    if len(data) <= _ROOM:
        return _ESCAPED + _escape(data)
    return _HASHED + hashlib.sha256(data).hexdigest()[:40]


def channel_name(shown: str) -> str:
    """The channel name on the bus for a channel name of the door. Raises ValueError if it is empty or too long."""
    if is_name(shown) and not shown.startswith(_ESCAPED):
        return shown
    data = shown.encode()
    if not data:
        raise ValueError("the name of a channel needs at least one character")
    if len(data) > _ROOM:
        raise ValueError(
            f"the name of a channel is too long: it may have 64 letters and digits, or {_ROOM} bytes "
            "with other characters"
        )
    return _ESCAPED + _escape(data)


def channel_shown(name: str) -> str:
    """The channel name of the door for a channel name on the bus."""
    if not name.startswith(_ESCAPED):
        return name
    try:
        return _unescape(name.removeprefix(_ESCAPED))
    except ValueError:  # a native client chose a name with this prefix
        return name


def _escape(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unescape(text: str) -> str:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
