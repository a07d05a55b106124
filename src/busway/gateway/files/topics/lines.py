"""Lines of a topic file: a bounded buffer of messages as lines, readers of it, and a parser of written data. Machines.

`subscriptions.py` fills the buffer, and `topic_files.py` reads it and parses writes.
"""

from bisect import bisect_right
from collections import deque
from errno import EMSGSIZE


class Lines:
    """A buffer of lines that grows at its end and is cut at its beginning.

    A position is a number of bytes since the first line ever, so positions only grow.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._ends: deque[int] = deque()
        """Position after each line."""
        self._text: bytes | None = b""
        self.base = 0
        """Position of the first byte in the buffer."""
        self.end = 0
        """Position after the last byte."""
        self.origin = 0
        """Position at which the file begins."""
        self.count = 0
        """Number of lines ever."""

    def add(self, line: bytes) -> None:
        """Add a line with its newline. Above its limit the buffer drops the oldest lines, but never the last one."""
        self._lines.append(line)
        self._text = None
        self.end += len(line)
        self._ends.append(self.end)
        self.count += 1
        while self.end - self.base > self._limit and len(self._lines) > 1:
            self._lines.popleft()
            self.base = self._ends.popleft()

    def number(self, position: int) -> int:
        """Number of lines that end at or before a position. A position before the buffer counts as its beginning."""
        return self.count - len(self._ends) + bisect_right(self._ends, position)

    def read(self, position: int, size: int) -> bytes:
        """At most `size` bytes from a position within the buffer."""
        if self._text is None:
            self._text = b"".join(self._lines)
        index = position - self.base
        return self._text[index : index + size]

    def rewind(self) -> None:
        """Let the file begin with the buffer; called while the file is not open."""
        self.origin = self.base

    @property
    def size(self) -> int:
        """Size of the file."""
        return self.end - self.origin


class Reader:
    """The position of one reader in lines, and the number of lines that it missed.

    A reader that has a part of a dropped line gets a newline before the next line.
    """

    def __init__(self, lines: Lines, position: int) -> None:
        self._lines = lines
        self._within = False
        """The reader has a part of a line."""
        self.position = max(position, lines.base)
        """Position after the last byte that it has read."""
        self._number = lines.number(self.position)
        self.missed = 0
        """Lines that the buffer dropped before it had read them to their end."""

    def read(self, position: int, size: int) -> tuple[int, bytes]:
        """The bytes from a position on, and the position of the first of them.

        That position is one before the buffer if the bytes begin with an additional newline.
        """
        lines, newline = self._lines, b""
        if position < lines.base:
            if self.position < lines.base:
                newline = b"\n" if self._within and position == self.position else b""
                first = lines.number(lines.base)
                self.missed += first - self._number
                self.position, self._number, self._within = lines.base, first, False
            position = lines.base
        data = lines.read(position, size - len(newline))
        if data and position + len(data) > self.position:
            self.position = position + len(data)
            self._within = not data.endswith(b"\n")
            self._number = lines.number(self.position)
        return position - len(newline), newline + data


class LineParser:
    """Splits the data written to a file into lines. A write is accepted or refused as a whole.

    A refused write takes with it all lines that it touches, also the one that it continues and the one that it
    begins: the parser discards the rest of the latter up to its newline.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.unfinished = b""
        """A line without its newline so far."""
        self._error = 0
        """Error code of a refused line whose newline has not come yet."""
        self.refused = 0
        """Number of refused lines."""

    def add(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without newlines. Raises OSError if a line is too long or was refused."""
        if self._error:
            _, newline, data = data.partition(b"\n")
            if not newline:
                raise OSError(self._error, "the beginning of this line was refused")
            self._error = 0
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        if len(self.unfinished) > self._limit or any(len(line) > self._limit for line in lines):
            self.refuse(len(lines), EMSGSIZE)
            raise OSError(EMSGSIZE, f"the line is too long: it may have {self._limit} bytes")
        return lines

    def refuse(self, lines: int, code: int) -> None:
        """Refuse the last `lines` lines of add(), and the unfinished line after them."""
        self._error = code if self.unfinished else 0
        self.refused += lines + bool(self.unfinished)
        self.unfinished = b""

    def finish(self) -> bytes:
        """Remove and return the unfinished line; empty if there is none."""
        unfinished, self.unfinished, self._error = self.unfinished, b"", 0
        return unfinished
