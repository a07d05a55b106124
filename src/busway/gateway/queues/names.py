"""Names of the JSON door and of the bus: a queue is a topic with a stream, and channels may be called anything. Values only.

A name that a stream or a channel may have is kept; any other is written in letters that they may, so that it can be read back.
"""

import base64
import hashlib
from typing import Final

from busway.streams import DEFAULT, is_name

DELETE_ON_EXIT: Final = 1 << 0
EXCLUSIVE: Final = 1 << 1
PAUSE: Final = 1 << 3
MASKS: Final = (1 << 31) - 1
"""Masks fit in the integers of all clients."""

_WRITTEN: Final = "j."
_LONG: Final = "jh."
_ROOM: Final = 46
"""Bytes of a name that fit in the 64 letters of another when they are written."""


def stream_name(topic: str) -> str:
    """The stream of the queue of this name, which is the topic that it takes."""
    if is_name(topic) and topic != DEFAULT and not topic.startswith((_WRITTEN, _LONG)):
        return topic
    data = topic.encode()
    if len(data) <= _ROOM:
        return _WRITTEN + _write(data)
    return _LONG + hashlib.sha256(data).hexdigest()[:40]


def channel_name(shown: str) -> str:
    """The channel that is called so. Raises ValueError for one that is too long."""
    if is_name(shown) and not shown.startswith(_WRITTEN):
        return shown
    data = shown.encode()
    if not data:
        raise ValueError("a channel has a name of at least one letter")
    if len(data) > _ROOM:
        raise ValueError(
            f"the name of a channel has at most 64 letters, or {_ROOM} bytes with others than letters and digits"
        )
    return _WRITTEN + _write(data)


def channel_shown(name: str) -> str:
    """What a channel is called, by whoever made it."""
    if not name.startswith(_WRITTEN):
        return name
    try:
        return _read(name.removeprefix(_WRITTEN))
    except ValueError:  # somebody else has called it so
        return name


def _write(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(text: str) -> str:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
