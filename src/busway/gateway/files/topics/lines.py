"""The lines of a topic that are kept, as a file that grows at its end and is cut at its beginning; and lines that are written. Machines."""

from bisect import bisect_right
from collections import deque
from errno import EMSGSIZE


class Lines:
    """Places are counted from the first line ever, so they only grow."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._ends: deque[int] = deque()
        """Places behind them."""
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
        self._ends.append(self.end)
        self.count += 1
        while self.end - self.base > self._limit and len(self._lines) > 1:
            self._lines.popleft()
            self.base = self._ends.popleft()

    def number(self, place: int) -> int:
        """How many lines end at a place or before it; of a place that is not kept any more, at that of the first byte that is."""
        return self.count - len(self._ends) + bisect_right(self._ends, place)

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


class Reader:
    """Where somebody is in lines, and what of them it did not get. Who was in the middle of a line that is gone gets a newline first."""

    def __init__(self, lines: Lines, place: int) -> None:
        self._lines = lines
        self._within = False
        """It has a part of a line."""
        self.place = max(place, lines.base)
        """Behind the last byte that it has."""
        self._number = lines.number(self.place)
        self.missed = 0
        """Lines that were gone before it had read them to their end."""

    def read(self, place: int, size: int) -> tuple[int, bytes]:
        """What there is from a place on, and the place at which that begins: before the first line that is kept if it has a newline of its own."""
        lines, newline = self._lines, b""
        if place < lines.base:
            if self.place < lines.base:
                newline = b"\n" if self._within and place == self.place else b""
                first = lines.number(lines.base)
                self.missed += first - self._number
                self.place, self._number, self._within = lines.base, first, False
            place = lines.base
        data = lines.read(place, size - len(newline))
        if data and place + len(data) > self.place:
            self.place = place + len(data)
            self._within = not data.endswith(b"\n")
            self._number = lines.number(self.place)
        return place - len(newline), newline + data


class Written:
    """What is written to a file, cut into lines. A write is taken as a whole or not at all.

    With a write that is refused its lines are, the one that it goes on with and the one that it ends in as well: what is left of
    that, up to its newline, is thrown away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.begun = b""
        """A line that has not ended yet."""
        self._refused = 0
        """Error with which a line was refused that has not ended yet."""
        self.thrown = 0
        """Lines that were refused."""

    def add(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their newlines. OSError: one is too long, or goes on with one that was refused."""
        if self._refused:
            _, newline, data = data.partition(b"\n")
            if not newline:
                raise OSError(self._refused, "the rest of a line that was refused")
            self._refused = 0
        *lines, self.begun = (self.begun + data).split(b"\n")
        if len(self.begun) > self._limit or any(len(line) > self._limit for line in lines):
            self.refuse(len(lines), EMSGSIZE)
            raise OSError(EMSGSIZE, f"a line has {self._limit} bytes at most")
        return lines

    def refuse(self, lines: int, code: int) -> None:
        """So many lines that were given last can't be, and what has begun behind them can't either."""
        self._refused = code if self.begun else 0
        self.thrown += lines + bool(self.begun)
        self.begun = b""

    def last(self) -> bytes:
        """The line that was begun and has no end; empty: there is none."""
        begun, self.begun, self._refused = self.begun, b"", 0
        return begun
