"""Places in streams: where a message is stored, and how far a reader has come.

A place is told by the broker that stored the message (its guid), the name of the stream and the offset in it. As text a
place is `guid:offset:stream`, and how far a reader has come `guid:+offset:stream`, with the offset it reads next; several are
joined by commas, so that they can be kept in a file or a variable.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self, TypeAlias, overload

import msgspec

from busway.common.durations import seconds
from busway.streams import LEVELS, Level

_GUID: Final = 32


class Origin(tuple[str, str]):  # noqa: SLOT001, it has an attribute of its own
    """A stream as its broker names it to a client: (guid, name), and how safely it stores messages at the moment."""

    safety: Level | None

    def __new__(cls, broker: str, stream: str, level: int = 0) -> Self:
        self = super().__new__(cls, (broker, stream))
        self.safety = LEVELS[level] if level < len(LEVELS) else None
        return self

    def __getnewargs__(self) -> tuple[str, str, int]:
        return *self, LEVELS.index(self.safety)


class _Place(NamedTuple):
    broker: str
    stream: str
    offset: int
    sequence: int = 0


class Position(_Place):
    """Where a message is stored. `sequence` is its place among the stored messages of its topic, from 1.

    `safety` is how safe the message is: in the `memory` of its broker, `written` to a file (or a database), `synced` to the disk, or `mirrored`. It is None
    where that is unknown, such as of a position that was read from text. It does not count when positions are compared.
    """

    safety: Level | None = None

    def __new__(cls, broker: str, stream: str, offset: int, sequence: int = 0, *, safety: Level | None = None) -> Self:
        self = tuple.__new__(cls, (broker, stream, offset, sequence))
        if safety is not None:
            self.safety = safety
        return self

    def after(self, count: int) -> Self:
        """The position that is so many places behind this one, in the stream and in the topic."""
        broker, stream, offset, sequence = self
        return type(self)(broker, stream, offset + count, sequence + count, safety=self.safety)

    def __str__(self) -> str:
        return f"{self.broker}:{self.offset}:{self.stream}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position that str() wrote."""
        return cls(*_parse(text))


class Positions(Mapping[tuple[str, str], int]):
    """How far a reader has come: the offset it reads next, by broker and stream. Never changes."""

    __slots__ = ("_next",)

    def __init__(self, after: Mapping[tuple[str, str], int] | Iterable[Position] = ()) -> None:
        self._next: dict[tuple[str, str], int] = {}
        if isinstance(after, Mapping):
            self._next.update(after)
        else:
            for one in after:
                place = one.broker, one.stream
                self._next[place] = max(self._next.get(place, 0), one.offset + 1)

    def __getitem__(self, place: tuple[str, str]) -> int:
        return self._next[place]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._next)

    def __len__(self) -> int:
        return len(self._next)

    def __hash__(self) -> int:
        return hash(frozenset(self._next.items()))

    def __repr__(self) -> str:
        return f"Positions({str(self)!r})"

    def __str__(self) -> str:
        return ",".join(f"{broker}:+{offset}:{stream}" for (broker, stream), offset in sorted(self._next.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The positions that str() wrote; the place of a message stands for all behind it."""
        found: dict[tuple[str, str], int] = {}
        for one in filter(None, map(str.strip, text.split(","))):
            guid, _, rest = one.partition(":")
            broker, stream, offset = _parse(f"{guid}:{rest.removeprefix('+')}")
            found[broker, stream] = offset if rest.startswith("+") else offset + 1
        return cls(found)


class Placed(Sequence[Position]):
    """Where many messages were stored, in the order they were published; as small as the runs they make."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[int, Position, int]] = []
        self._count = 0

    def add(self, first: Position, count: int) -> None:
        """So many that lie one after the other."""
        self._runs.append((self._count, first, count))
        self._count += count

    def extend(self, more: "Placed") -> None:
        for _, first, count in more._runs:  # noqa: SLF001, one of its own kind
            self.add(first, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError("position out of range")
        low, high = 0, len(self._runs)
        while high - low > 1:
            middle = (low + high) // 2
            if self._runs[middle][0] <= at:
                low = middle
            else:
                high = middle
        begin, first, _ = self._runs[low]
        return first.after(at - begin)

    def __iter__(self) -> Iterator[Position]:
        for _, first, count in self._runs:
            for more in range(count):
                yield first.after(more)

    def __repr__(self) -> str:
        return f"<Placed {self._count} messages in {len(self._runs)} runs>"


def position_at(origin: tuple[str, str], offset: int, sequence: int) -> Position:
    """The position of a message; called by the engine."""
    broker, stream = origin
    return Position(broker, stream, offset, sequence, safety=getattr(origin, "safety", None))


def _parse(text: str) -> tuple[str, str, int]:
    broker, _, rest = text.strip().partition(":")
    offset, _, stream = rest.partition(":")
    sound = len(broker) == _GUID and all(digit in "0123456789abcdef" for digit in broker)
    if not (sound and offset.isascii() and offset.isdigit() and stream):
        raise ValueError(f"{text!r} is no position; one is written guid:offset:stream")
    return broker, stream, int(offset)


Since: TypeAlias = str | timedelta | datetime | Position | Positions
"""Everything, a length of time back, a time, behind a position, or where a reader had come to."""

_BILLION: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 2**63 - 1


def encode_since(since: Since | None) -> bytes:
    """As SUBSCRIBE says it; no bytes: nothing that is stored."""
    if since is None:
        return b""
    if isinstance(since, Position):
        since = Positions([since])
    if isinstance(since, Positions):
        return since_positions(since)
    if isinstance(since, datetime):
        return msgspec.msgpack.encode(("time", moment("since", since)))
    if isinstance(since, str) and since in {"all", "new"}:
        return msgspec.msgpack.encode((since, None))
    if isinstance(since, str) and ":" in since:
        return since_positions(Positions.parse(since))
    _check_no_number(since)
    return msgspec.msgpack.encode(("ago", int(seconds("since", since) * _BILLION)))


def _check_no_number(since: object) -> None:
    """Elsewhere a number is an offset, and here it might be taken for seconds."""
    if isinstance(since, int | float):
        raise TypeError(
            f'since={since!r} could be seconds or an offset: write timedelta(seconds={since!r}) or "{since}s" for a length of time '
            "back, a Position for what comes behind a message"
        )


def moment(name: str, value: datetime) -> int:
    """A time in nanoseconds since 1970."""
    if value.tzinfo is None:
        raise ValueError(f"{name}: {value!r} has no time zone; say which, as in datetime.now(UTC)")
    return min((value - _EPOCH) // timedelta(microseconds=1) * 1000, _MOST)


def since_positions(positions: Mapping[tuple[str, str], int]) -> bytes:
    """Everything from these places on."""
    places = [(broker, stream, offset) for (broker, stream), offset in positions.items()]
    return msgspec.msgpack.encode(("at", places))


def since_again(positions: Mapping[tuple[str, str], int], since: bytes, begun: int) -> bytes:
    """From these places on, and of streams without one from where it was begun with at a time (nanoseconds)."""
    kind, value = msgspec.msgpack.decode(since)
    if kind == "at":  # not so again: a server that has lost its end refuses who begins behind it, not who comes back
        positions = {(broker, stream): offset for broker, stream, offset in value} | dict(positions)
        kind, value = "all", None
    if kind in {"new", "ago"}:
        kind, value = "time", begun - (value or 0)
    places = [(broker, stream, offset) for (broker, stream), offset in positions.items()]
    return msgspec.msgpack.encode(("back", (places, kind, value)))
