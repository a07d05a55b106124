"""Frames of a WebSocket client that sends many messages of the same length: put together once, apart from their numbers.

They are masked with zeros, so the load generator does next to nothing for each; the server has the same work with any mask.
"""

DIGITS = 10
"""Of the number that each message has as its id."""
NUMBER = b"%010d"
_ID = b'"id":"'


def head(size: int) -> bytes:
    """What comes before a text message of a client."""
    if size < 126:
        return bytes((0x81, 0x80 | size, 0, 0, 0, 0))
    if size < 65_536:
        return bytes((0x81, 0x80 | 126)) + size.to_bytes(2) + bytes(4)
    return bytes((0x81, 0x80 | 127)) + size.to_bytes(8) + bytes(4)


def frame(message: bytes) -> bytes:
    return head(len(message)) + message


def publish(mq: str, body: int, *, ack: bool = True) -> tuple[bytes, bytes]:
    """A `pub` in two parts, between which its number goes."""
    before = b'{"cmd":"pub","mq":"' + mq.encode() + b'",' + _ID
    after = b'","body":"' + b"x" * body + (b'"}' if ack else b'","ack":false}')
    return head(len(before) + DIGITS + len(after)) + before, after


def number(message: bytes) -> int:
    """The number of a message, or of one that is acknowledged."""
    at = message.index(_ID) + len(_ID)
    return int(message[at : at + DIGITS])
