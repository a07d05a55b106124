"""A map from offsets to small numbers, stored as sorted intervals, so memory grows with the number of value changes.

An interval is [start, end). Adjacent intervals with the same value are merged. Channels store their progress in it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Intervals:
    """A map of offsets to small numbers. An offset outside all intervals has the value 0."""

    __slots__ = ("_ends", "_starts", "_values")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._starts, self._ends, self._values, strict=True)

    def __repr__(self) -> str:
        return f"Intervals({list(self)})"

    def put(self, start: int, end: int, value: int = 1) -> None:
        """Set the value of the offsets from `start` to before `end`; 0 removes them."""
        if start >= end:
            return
        if not self._ends or start > self._ends[-1]:
            if value:
                self._starts.append(start)
                self._ends.append(end)
                self._values.append(value)
            return
        first, last = self._cut(start), self._cut(end)
        if value == 0:
            self._replace(first, last, [], [], [])
            return
        if first > 0 and self._ends[first - 1] == start and self._values[first - 1] == value:
            first -= 1
            start = self._starts[first]
        if last < len(self._starts) and self._starts[last] == end and self._values[last] == value:
            end = self._ends[last]
            last += 1
        self._replace(first, last, [start], [end], [value])

    def forget(self, below: int) -> None:
        """Remove all offsets below this one."""
        if self._starts and self._starts[0] < below:
            self._replace(0, self._cut(below), [], [], [])

    def copy(self) -> "Intervals":
        other = Intervals()
        other._starts, other._ends, other._values = self._starts.copy(), self._ends.copy(), self._values.copy()
        return other

    def clear(self) -> None:
        self._replace(0, len(self._starts), [], [], [])

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield [start, end) as intervals without gaps; offsets outside all intervals have the value 0."""
        at, index = start, bisect_right(self._ends, start)
        while at < end:
            if index == len(self._starts) or self._starts[index] >= end:
                yield at, end, 0
                return
            if self._starts[index] > at:
                yield at, self._starts[index], 0
                at = self._starts[index]
            upto = min(self._ends[index], end)
            yield at, upto, self._values[index]
            at, index = upto, index + 1

    def beyond(self, offset: int) -> int:
        """Return the first offset from this one on that is outside all intervals."""
        index = bisect_right(self._ends, offset)
        while index < len(self._starts) and self._starts[index] <= offset:
            offset = self._ends[index]
            index += 1
        return offset

    def _cut(self, at: int) -> int:
        """Split the interval across this offset. Return the index of the first interval that begins here or later."""
        index = bisect_left(self._starts, at)
        if index > 0 and self._ends[index - 1] > at:
            self._starts.insert(index, at)
            self._ends.insert(index, self._ends[index - 1])
            self._values.insert(index, self._values[index - 1])
            self._ends[index - 1] = at
        return index

    def _replace(self, first: int, last: int, starts: list[int], ends: list[int], values: list[int]) -> None:
        self._starts[first:last] = starts
        self._ends[first:last] = ends
        self._values[first:last] = values
