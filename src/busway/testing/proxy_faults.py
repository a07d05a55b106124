"""Faults of a proxied connection, and the state machine that finds their place in a byte stream; `proxy` calls it.

A place is counted from the start of a connection, in bytes or in whole frames of the wire protocol. `up` is the
direction from the client to the server, `down` the other one. The module uses no clock and no socket.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Way = Literal["up", "down"]
_PREFIX = 4  # bytes of a frame's length field


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that occurs after `byte` bytes, or after `frame` whole frames."""

    kind: Literal["cut", "reset", "stall", "garble"]
    way: Way
    byte: int | None = None
    frame: int | None = None
    size: int = 1

    def __post_init__(self) -> None:
        if (self.byte is None) == (self.frame is None):
            raise ValueError("a fault needs either byte= or frame=")
        if (self.byte or 0) < 0 or (self.frame or 0) < 0 or self.size < 1:
            raise ValueError("byte and frame of a fault must be 0 or more, and size 1 or more")


def cut(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """Forward data up to this place, then close the connection in both directions."""
    return Fault("cut", way, byte, frame)


def reset(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """Forward data up to this place, then reset the connection: both ends get a connection reset error."""
    return Fault("reset", way, byte, frame)


def stall(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """Forward data up to this place, then nothing in this direction until the link is released. It stays connected."""
    return Fault("stall", way, byte, frame)


def garble(way: Way, *, byte: int | None = None, frame: int | None = None, size: int = 1) -> Fault:
    """Invert all bits of `size` bytes after this place."""
    return Fault("garble", way, byte, frame, size)


class Flow:
    """One direction of a connection: takes received data, and yields data to forward and the faults at their places."""

    def __init__(self, faults: Sequence[Fault] = (), chunk: int | None = None) -> None:
        self.bytes = 0
        self.frames = 0
        self.chunk = chunk
        self._waiting = list(faults)
        self._prefix = bytearray()  # the received part of the length field of the current frame
        self._left = 0  # missing bytes of the current frame after its length field
        self._garbled = 0  # bytes that must still be garbled

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def heal(self) -> None:
        """Drop the faults that have not occurred."""
        self._waiting.clear()

    def due(self) -> list[Fault]:
        """Return the faults whose place was reached, each once. The flow itself garbles and does not return these."""
        reached = [fault for fault in self._waiting if self._reached(fault)]
        self._waiting = [fault for fault in self._waiting if fault not in reached]
        self._garbled += sum(fault.size for fault in reached if fault.kind == "garble")
        return [fault for fault in reached if fault.kind != "garble"]

    def feed(self, data: bytes) -> Iterator[bytes | Fault]:
        """Yield pieces of the data, garbled if planned, and between them the faults at their places."""
        yield from self.due()
        at = 0
        while at < len(data):
            size = self._until_next(len(data) - at)
            piece = data[at : at + size]
            at += size
            self._count(piece)
            if self._garbled:
                piece = bytes(byte ^ 0xFF for byte in piece)
                self._garbled -= size
            yield piece
            yield from self.due()

    def _reached(self, fault: Fault) -> bool:
        if fault.byte is not None:
            return self.bytes >= fault.byte
        return self.frames >= (fault.frame or 0)

    def _until_next(self, most: int) -> int:
        """Return how many bytes to forward until the next fault, end of a frame, or end of a chunk."""
        stops = [most, self._left or _PREFIX - len(self._prefix)]
        stops += [fault.byte - self.bytes for fault in self._waiting if fault.byte is not None]
        if self.chunk:
            stops.append(self.chunk)
        if self._garbled:
            stops.append(self._garbled)
        if not self.chunk and not self._garbled and not self._waiting:
            # No fault is planned: the flow counts frames without splitting the data.
            return most
        return min(stops)

    def _count(self, piece: bytes) -> None:
        """Count the frames in a piece of data before it is garbled."""
        self.bytes += len(piece)
        at = 0
        while at < len(piece):
            if self._left:
                step = min(self._left, len(piece) - at)
                self._left -= step
            else:
                step = min(_PREFIX - len(self._prefix), len(piece) - at)
                self._prefix += piece[at : at + step]
                if len(self._prefix) == _PREFIX:
                    self._left = int.from_bytes(self._prefix, "little")
                    self._prefix.clear()
                    if self._left == 0:
                        self.frames += 1
                at += step
                continue
            at += step
            if self._left == 0:
                self.frames += 1
