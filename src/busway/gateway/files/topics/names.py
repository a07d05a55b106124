"""Topics as names of files: a fragment is a name, and what a name can't have is written as %XX. Values only.

A name in which something is written so always stands for a topic, never for a folder: `price%2Feth` is the topic `price/eth`, also
where there is no folder `price`, and `%70rice` the topic `price` where that is a folder.
"""

import re
from errno import ENOENT
from typing import Final

from busway.errors import BusError
from busway.topic import check_topic, is_reserved

_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
LONGEST: Final = 255
"""Bytes of a name that is listed."""


def is_escaped(name: str) -> bool:
    """Whether a name can only be that of a topic."""
    return _ESCAPED.search(name.encode("utf-8", "surrogateescape")) is not None


def topic_of(folder: str, name: str) -> str:
    """The topic of a name in a folder. OSError: there can be none."""
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("utf-8", "surrogateescape"))
    try:
        fragment = raw.decode()
        topic = f"{folder}/{fragment}" if folder else fragment
        if topic and check_topic("/" + topic) == topic and not is_reserved(topic):
            return topic
    except (UnicodeDecodeError, BusError):
        pass
    raise OSError(ENOENT, f"{name!r} can't be a topic")


def name_of(fragment: str, *, topic: bool = False) -> str | None:
    """The name of a fragment in its folder; with `topic` one that can't be a folder's. None: it is too long to be listed."""
    name = fragment.replace("%", "%25") if is_escaped(fragment) else fragment
    if fragment in {".", ".."} or (topic and name == fragment):
        name = "".join(f"%{byte:02X}" for byte in fragment[0].encode()) + fragment[1:]
    return name if len(name.encode()) <= LONGEST else None
