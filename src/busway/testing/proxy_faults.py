"""What goes wrong with a connection, and when: faults as values, and the machine that finds their place in a byte stream.

A place is counted from the beginning of a connection, in bytes or in whole frames of the wire protocol. `up` is the way from
the client to the server, `down` the way back. No clock and no socket here; `proxy` does what this says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Way = Literal["up", "down"]
_PREFIX = 4  # bytes of a frame's length field


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong once `byte` bytes, or `frame` whole frames, have passed."""

    kind: Literal["cut", "reset", "stall", "garble"]
    way: Way
    byte: int | None = None
    frame: int | None = None
    size: int = 1

    def __post_init__(self) -> None:
        if (self.byte is None) == (self.frame is None):
            raise ValueError("a fault has its place either at a byte or at a frame")
        if (self.byte or 0) < 0 or (self.frame or 0) < 0 or self.size < 1:
            raise ValueError("places are counted from 0 and sizes from 1")


def cut(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """Pass exactly so much, then end the connection in both directions."""
    return Fault("cut", way, byte, frame)


def reset(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """As cut, but without goodbye: whoever reads next gets a connection reset."""
    return Fault("reset", way, byte, frame)


def stall(way: Way, *, byte: int | None = None, frame: int | None = None) -> Fault:
    """Pass exactly so much, then nothing more in this direction until the link is released; the connection stays."""
    return Fault("stall", way, byte, frame)


def garble(way: Way, *, byte: int | None = None, frame: int | None = None, size: int = 1) -> Fault:
    """Turn over every bit of the `size` bytes that follow."""
    return Fault("garble", way, byte, frame, size)


class Flow:
    """One direction of one connection: is fed what came, and yields what to pass on and the faults at their places."""

    def __init__(self, faults: Sequence[Fault] = (), chunk: int | None = None) -> None:
        self.bytes = 0
        self.frames = 0
        self.chunk = chunk
        self._waiting = list(faults)
        self._prefix = bytearray()  # what is known of the length field of the frame under way
        self._left = 0  # bytes of the frame under way after its length field
        self._garbled = 0  # bytes still to be garbled

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def heal(self) -> None:
        """Forget the faults whose place has not been reached."""
        self._waiting.clear()

    def due(self) -> list[Fault]:
        """The faults whose place has been reached, each told once; garbling is done here and is not told."""
        reached = [fault for fault in self._waiting if self._reached(fault)]
        self._waiting = [fault for fault in self._waiting if fault not in reached]
        self._garbled += sum(fault.size for fault in reached if fault.kind == "garble")
        return [fault for fault in reached if fault.kind != "garble"]

    def feed(self, data: bytes) -> Iterator[bytes | Fault]:
        """Yields pieces of data (changed where garbled) and, between them, the faults as their places are reached."""
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
        """How many bytes may pass before something can happen: a fault's byte, a frame's end, or a chunk's."""
        stops = [most, self._left or _PREFIX - len(self._prefix)]
        stops += [fault.byte - self.bytes for fault in self._waiting if fault.byte is not None]
        if self.chunk:
            stops.append(self.chunk)
        if self._garbled:
            stops.append(self._garbled)
        if not self.chunk and not self._garbled and not self._waiting:
            # Nothing can happen: the frames are counted, but the bytes need not be cut up for it.
            return most
        return min(stops)

    def _count(self, piece: bytes) -> None:
        """Follow the frames through a piece; what is garbled counts as it came."""
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
