"""The lines of a topic that are kept, as a file that grows at its end and is cut at its beginning; and lines that are written. Machines."""

from collections import deque
from errno import EMSGSIZE


class Lines:
    """Places are counted from the first line ever, so they only grow."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._text: bytes | None = b""
        self.base = 0
        """Place of the first byte that is kept."""
        self.end = 0
        """Place behind the last."""
        self.origin = 0
        """Place at which the file begins."""
        self.count = 0
        """Lines that there were in all."""

    def add(self, line: bytes) -> None:
        """One more, with its newline. The oldest go when there are too many bytes, but never the last one."""
        self._lines.append(line)
        self._text = None
        self.end += len(line)
        self.count += 1
        while self.end - self.base > self._limit and len(self._lines) > 1:
            self.base += len(self._lines.popleft())

    def read(self, place: int, size: int) -> bytes:
        """What is kept from a place on, which has to lie within it."""
        if self._text is None:
            self._text = b"".join(self._lines)
        at = place - self.base
        return self._text[at : at + size]

    def rewind(self) -> None:
        """Let the file begin with what is kept, as nobody has it open."""
        self.origin = self.base

    @property
    def size(self) -> int:
        return self.end - self.origin


class Written:
    """What is written to a file, cut into lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their newlines. OSError: one is too long, and nothing of the write was taken."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > self._limit or any(len(line) > self._limit for line in lines):
            raise OSError(EMSGSIZE, f"a line has {self._limit} bytes at most")
        self._rest = rest
        return lines

    def last(self) -> bytes:
        """The line that was begun and has no end; empty: there is none."""
        rest, self._rest = self._rest, b""
        return rest
