"""Writes the channel journal of Busway 0.1.0, `channels.log`. Frozen: it does not use code that can change."""

import struct
import zlib
from typing import Any

import msgspec


def old_record(entry: list[Any]) -> bytes:
    """One record: magic, length, CRC-32 over length and body, and the body."""
    body = msgspec.msgpack.encode(entry).replace(b"\xc1B", b"\xc1B\x00")
    length = struct.pack("<I", len(body))
    return b"\xc1BWC" + length + struct.pack("<I", zlib.crc32(body, zlib.crc32(length))) + body


OLD_ENTRIES: list[list[Any]] = [
    ["here", "0123456789abcdef", 3, 1, [[1, 40], [2, 7]], False],
    ["new", "work", 1_700_000_000_000_000, 5, {"lease": 5.0, "topic": "orders/*", "where": b"\xc1BWC"}, 2],
    ["done", "work", 1_700_000_000_000_000, 7, [[9, 2], [14, 1]]],
    ["gave", "work", 1_700_000_000_000_000, 3, [[20, 2]]],
    ["new", "news", 4, 0, {}, 0],
    ["set", "news", {"paused": True, "backoff": [1.0, 2.0]}],
    ["seek", "news", 5, 30],
    ["back", "work", 1_700_000_000_000_001, [[9, 1]]],
    ["lost", "news", 5, 31, 4, 2],
    ["new", "gone", 1, 0, {}, 0],
    ["gone", "gone"],
    ["done", "work", 1_700_000_000_000_001, 8, []],
]
"""Something of each kind."""
