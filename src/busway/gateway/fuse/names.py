"""Topics as names of files: a fragment is a name, and what a name can't have is written as %XX. Values only.

A name in which something is written so always stands for a topic, never for a folder: `price%2Feth` is the topic `price/eth`, also
where there is no folder `price`, and `%70rice` the topic `price` where that is a folder.
"""

import re
from errno import ENAMETOOLONG, ENOENT
from typing import Final

from busway.errors import BusError
from busway.topic import check_topic, is_reserved

_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
LONGEST: Final = 255
"""Bytes of a name."""


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


def name_of(fragment: str) -> str:
    """The name of a fragment in its folder. OSError: it is too long for one."""
    if fragment in {".", ".."}:
        return "%2E" + fragment[1:]
    name = fragment.replace("%", "%25") if is_escaped(fragment) else fragment
    if len(name.encode()) > LONGEST:
        raise OSError(ENAMETOOLONG, name)
    return name
