"""The keys of messages by which a channel with `order_by` keeps their order. Values only."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from busway._core import Block
from busway.broker.channels.state.progress import Span

TOPIC: Final = "topic"
_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def keys_of(block: Block, spans: Iterable[Span], order_by: str) -> list[int | None]:
    """The key of each message: a hash of its topic, or of the field with this name. None: it has no such field.

    Two keys with the same hash count as one, which costs parallelism but never the order.
    """
    keys = []
    for start, count in spans:
        for offset in range(start, start + count):
            row = block.get(offset)
            keys.append(None if row is None else key_of(row[3], row[5], order_by))
    return keys


def key_of(topic: str, packed: bytes | None, order_by: str) -> int | None:
    """The key of a message with this topic and these fields, as they are stored."""
    if order_by == TOPIC:
        return hash(topic)
    fields: dict[str, Any] = _decode(packed) if packed else {}
    return hash(_encode(fields[order_by])) if order_by in fields else None
