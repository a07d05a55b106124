"""Conversion between topics and file names: a topic segment is a file name, with other characters escaped as %XX.

A name with an escape always names a topic, never a folder: `price%2Feth` is the topic `price/eth`, even without a
folder `price`, and `%70rice` is the topic `price` where `price` is a folder. `tree.py` calls this module. Values
only.
"""

import re
from errno import ENOENT
from typing import Final

from busway.errors import BusError
from busway.topic import check_topic, is_reserved

_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
LONGEST: Final = 255
"""Longest name that is listed, in bytes."""


def is_escaped(name: str) -> bool:
    """Whether a name has an escape, so that it can only name a topic."""
    return _ESCAPED.search(name.encode("utf-8", "surrogateescape")) is not None


def topic_of(folder: str, name: str) -> str:
    """The topic of a name in a folder. Raises OSError if the name is not a valid topic."""
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("utf-8", "surrogateescape"))
    try:
        segment = raw.decode()
        topic = f"{folder}/{segment}" if folder else segment
        if topic and check_topic("/" + topic) == topic and not is_reserved(topic):
            return topic
    except (UnicodeDecodeError, BusError):
        pass
    raise OSError(ENOENT, f"{name!r} is not a valid topic")


def name_of(segment: str, *, topic: bool = False) -> str | None:
    """The file name of a segment; with `topic` one that can't be a folder's. None: it is too long to be listed."""
    name = segment.replace("%", "%25") if is_escaped(segment) else segment
    if segment in {".", ".."} or (topic and name == segment):
        name = "".join(f"%{byte:02X}" for byte in segment[0].encode()) + segment[1:]
    return name if len(name.encode()) <= LONGEST else None
