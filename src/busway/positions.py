"""Positions in streams: where a message is stored, how far a reader has read, and the `since` of a subscription.

A position consists of the guid of the broker that stored the message, the name of the stream and the offset in it. Its
text form is `guid:offset:stream`. The progress of a reader is `guid:+offset:stream` with the next offset to read, for
several streams joined by commas. Clients return positions, and users may store them as text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self, TypeAlias, overload

import msgspec

from busway.common.durations import seconds
from busway.streams import LEVELS, Level

_GUID: Final = 32


class Origin(tuple[str, str]):  # noqa: SLOT001, it has an attribute
    """A stream as its broker announces it to a client: (guid, name), with its current safety level."""

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
    """Where a message is stored. `sequence` numbers the stored messages of its topic, from 1.

    `safety` is the safety level of the message: in the `memory` of its broker, `written` to a file or database,
    `synced` to the disk, or `mirrored`. It is None if unknown, such as for a parsed position. Comparisons ignore it.
    """

    safety: Level | None = None

    def __new__(cls, broker: str, stream: str, offset: int, sequence: int = 0, *, safety: Level | None = None) -> Self:
        self = tuple.__new__(cls, (broker, stream, offset, sequence))
        if safety is not None:
            self.safety = safety
        return self

    def after(self, count: int) -> Self:
        """Return the position `count` messages after this one, in the stream and in the topic."""
        broker, stream, offset, sequence = self
        return type(self)(broker, stream, offset + count, sequence + count, safety=self.safety)

    def __str__(self) -> str:
        return f"{self.broker}:{self.offset}:{self.stream}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that str() returns."""
        return cls(*_parse(text))


class Positions(Mapping[tuple[str, str], int]):
    """The progress of a reader: the next offset to read, by broker and stream. Immutable."""

    __slots__ = ("_next",)

    def __init__(self, after: Mapping[tuple[str, str], int] | Iterable[Position] = ()) -> None:
        self._next: dict[tuple[str, str], int] = {}
        if isinstance(after, Mapping):
            self._next.update(after)
        else:
            for position in after:
                place = position.broker, position.stream
                self._next[place] = max(self._next.get(place, 0), position.offset + 1)

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
        """Parse the text that str() returns. The position of a message means that reading resumes after it."""
        offsets: dict[tuple[str, str], int] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            guid, _, rest = part.partition(":")
            broker, stream, offset = _parse(f"{guid}:{rest.removeprefix('+')}")
            offsets[broker, stream] = offset if rest.startswith("+") else offset + 1
        return cls(offsets)


class Placed(Sequence[Position]):
    """The positions of many published messages, in publish order. It stores runs of consecutive positions."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[int, Position, int]] = []
        self._count = 0

    def add(self, first: Position, count: int) -> None:
        """Append a run of `count` consecutive positions."""
        self._runs.append((self._count, first, count))
        self._count += count

    def extend(self, more: "Placed") -> None:
        for _, first, count in more._runs:  # noqa: SLF001, the same class
            self.add(first, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(self._count))]
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
    """Create the position of a message. The engine calls it."""
    broker, stream = origin
    return Position(broker, stream, offset, sequence, safety=getattr(origin, "safety", None))


def _parse(text: str) -> tuple[str, str, int]:
    broker, _, rest = text.strip().partition(":")
    offset, _, stream = rest.partition(":")
    sound = len(broker) == _GUID and all(digit in "0123456789abcdef" for digit in broker)
    if not (sound and offset.isascii() and offset.isdigit() and stream):
        raise ValueError(f"{text!r} is not a position; write guid:offset:stream")
    return broker, stream, int(offset)


Since: TypeAlias = str | timedelta | datetime | Position | Positions
"""Where a subscription begins: "all", "new", a duration ago, a time, after a position, or at a reader's progress."""

_BILLION: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 2**63 - 1


def encode_since(since: Since | None) -> bytes:
    """Encode `since` for the SUBSCRIBE frame. None becomes no bytes, which asks for no stored messages."""
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
    """Raise TypeError for a number, which could be an offset or seconds."""
    if isinstance(since, int | float):
        raise TypeError(
            f"since={since!r} could be seconds or an offset: write timedelta(seconds={since!r}) or "
            f'"{since}s" for a length of time ago, or a Position to begin after a message'
        )


def moment(name: str, value: datetime) -> int:
    """Return a time in nanoseconds since 1970. Raises ValueError without a time zone."""
    if value.tzinfo is None:
        raise ValueError(f"{name}: {value!r} has no time zone; give one, as in datetime.now(UTC)")
    return min((value - _EPOCH) // timedelta(microseconds=1) * 1000, _MOST)


def since_positions(positions: Mapping[tuple[str, str], int]) -> bytes:
    """Encode a `since` that begins at these offsets."""
    places = [(broker, stream, offset) for (broker, stream), offset in positions.items()]
    return msgspec.msgpack.encode(("at", places))


def since_again(positions: Mapping[tuple[str, str], int], since: bytes, begun: int) -> bytes:
    """Encode the `since` of a reconnect: resume at these offsets.

    Streams without an offset begin where the subscription began at the time `begun`, in nanoseconds.
    """
    kind, value = msgspec.msgpack.decode(since)
    if kind == "at":  # sent as "back": a server that lost the end of its stream refuses "at" behind it, but not "back"
        positions = {(broker, stream): offset for broker, stream, offset in value} | dict(positions)
        kind, value = "all", None
    if kind in {"new", "ago"}:
        kind, value = "time", begun - (value or 0)
    places = [(broker, stream, offset) for (broker, stream), offset in positions.items()]
    return msgspec.msgpack.encode(("back", (places, kind, value)))
