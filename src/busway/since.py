"""From where stored messages are wanted, as a subscription says it and as it goes over the wire."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from busway.durations import seconds
from busway.positions import Position, Positions

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
