"""Subscriptions that ask for stored messages: gives those that are behind what they missed, block by block.

A subscription is behind on a stream when it begins, and again whenever its connection or its consumer has no room. It reads
from the log then, never more at once than lets live messages through, until the engine says that it is live.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import Selection
from busway.broker.stream import Stream, takes
from busway.errors import BusError, Code, InvalidRule
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

_BLOCK: Final = 256 << 10
_MOST: Final = 2**63 - 1
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]
_RETRY: Final = 1.0
_TURN: Final = 4
"""Blocks that are read before everybody else has a turn."""


@dataclass(slots=True, eq=False)
class _Cursor:
    conn: int
    sub: int
    stream: Stream
    selection: Selection
    next: int | None
    """None: it is not known yet where it begins."""
    held: bytes | None = None
    """The record that may be the last of the backlog."""
    again: Callable[[], object] = field(init=False)
    """To be called when what it reads next was fetched. One for all times, so that whoever fetches knows it again."""


class Replaying:
    """All subscriptions of one hub that miss nothing."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._selections: dict[int, dict[int, tuple[str, Selection]]] = {}
        """What each subscription asks for: its pattern, and that with its rules."""
        self._behind: dict[int, dict[tuple[int, int], _Cursor]] = {}
        self._planned: set[int] = set()

    def begin(self, conn: int, sub: int, pattern: str, rules: bytes, since: bytes) -> None:
        """A SUBSCRIBE with SINCE was let through: it gets all from there on. Raises if it can't be understood."""
        where = _Since(since)
        selection = Selection(pattern, rules)
        self._selections.setdefault(conn, {})[sub] = pattern, selection
        for stream in self._hub.streaming.streams.values():
            if stream.takes(pattern):
                cursor = _Cursor(conn, sub, stream, selection, None)
                cursor.next = where.offset(stream, self._hub.guid, partial(self._begins, cursor))
                self._add(cursor)

    def check(self, since: bytes, group: str) -> None:
        """Raises if this can't be understood, or can't be done."""
        if group:
            raise InvalidRule("since: a group shares messages as they come; who shares stored ones uses a channel")
        _Since(since)

    def _add(self, cursor: _Cursor) -> None:
        stream = cursor.stream
        self._hub.engine.add_cursor(cursor.conn, cursor.sub, stream.number)
        self._behind_by(cursor)
        if cursor.next is not None:
            self._begins(cursor, cursor.next)

    def _begins(self, cursor: _Cursor, offset: int) -> None:
        """It is known where it begins; unless it has ended meanwhile."""
        conn, sub, number = cursor.conn, cursor.sub, cursor.stream.number
        if self._behind.get(conn, {}).get((sub, number)) is cursor:
            cursor.next = offset
            # An empty gap tells where it begins, so that it can go on from there after a lost connection.
            self._hub.engine.tell_gap(conn, sub, number, offset, offset)
            self.plan(conn)

    def _behind_by(self, cursor: _Cursor) -> None:
        cursor.again = partial(self._fetched, cursor)
        self._behind.setdefault(cursor.conn, {})[cursor.sub, cursor.stream.number] = cursor

    def _fetched(self, cursor: _Cursor) -> None:
        if self._behind.get(cursor.conn, {}).get((cursor.sub, cursor.stream.number)) is cursor:
            self.plan(cursor.conn)

    def added(self, stream: Stream) -> None:
        """A new stream: who misses nothing misses nothing of it either."""
        self._follow(stream, lambda pattern: not stream.takes(pattern), stream.first)

    def widened(self, stream: Stream, before: StreamConfig) -> None:
        """A stream takes more topics than before: nothing is missed of those that come from now on."""
        self._follow(stream, lambda pattern: takes(before, pattern) or not stream.takes(pattern), stream.safe)

    def _follow(self, stream: Stream, leave: Callable[[str], bool], begin: int) -> None:
        for conn, selections in self._selections.items():
            for sub, (pattern, selection) in selections.items():
                if not leave(pattern):
                    self._add(_Cursor(conn, sub, stream, selection, begin))

    def fell_behind(self, conn: int, sub: int, number: int, offset: int) -> None:
        """The engine had no room for a live record."""
        stream = next((one for one in self._hub.streaming.streams.values() if one.number == number), None)
        asked = self._selections.get(conn, {}).get(sub)
        if stream is not None and asked is not None:
            self._behind_by(_Cursor(conn, sub, stream, asked[1], offset))
            self.plan(conn)

    def end(self, conn: int, sub: int) -> None:
        """A subscription is over."""
        self._selections.get(conn, {}).pop(sub, None)
        behind = self._behind.get(conn, {})
        for key in [key for key in behind if key[0] == sub]:
            del behind[key]

    def forget(self, conn: int) -> None:
        """A connection is over."""
        self._selections.pop(conn, None)
        self._behind.pop(conn, None)

    def removed(self, stream: Stream) -> int:
        """A stream goes: those that are behind are told what they will never get; how many. All go on with other streams."""
        count = 0
        for conn, behind in self._behind.items():
            for key in [key for key in behind if key[1] == stream.number]:
                cursor = behind.pop(key)
                begin = cursor.next if cursor.held is None else offset_of(cursor.held)
                if begin is not None and begin < stream.safe:
                    self._hub.engine.tell_gap(conn, key[0], stream.number, begin, stream.safe)
                    count += 1
        return count

    # Reading.

    def plan(self, conn: int) -> None:
        """Read on for this connection soon."""
        if conn not in self._planned and self._behind.get(conn):
            self._planned.add(conn)
            self._hub.loop.call_soon(self._work, conn)

    def _work(self, conn: int) -> None:
        self._planned.discard(conn)
        more = False
        for key, cursor in list(self._behind.get(conn, {}).items()):
            try:
                more |= self._read(key, cursor)
            except BusError as error:
                name = cursor.stream.config.name
                log.error("stream %r can't be read, and is tried again: %s", name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
                self._hub.loop.call_later(_RETRY, self.plan, conn)
        self._hub.flush()
        if more:
            self.plan(conn)

    def _read(self, key: tuple[int, int], cursor: _Cursor) -> bool:
        """Give it some blocks; whether there are more and there is room."""
        engine, (sub, number) = self._hub.engine, key
        for _ in range(_TURN):
            if cursor.next is None or not engine.has_room(cursor.conn, sub):
                return False
            found = cursor.stream.read(cursor.next, _BLOCK, cursor.again)
            if found is None:
                return False
            first, behind, block = found
            if first > cursor.next:
                engine.tell_gap(cursor.conn, sub, number, cursor.next, first)
            cursor.next, cursor.held, live = engine.replay(
                cursor.conn, sub, number, block, behind, cursor.selection, cursor.held
            )
            if live:
                self._behind.get(cursor.conn, {}).pop(key, None)
                return False
        return True


def offset_of(record: bytes) -> int:
    """Where a record lies in its stream."""
    return int.from_bytes(record[8:16], "little")


class _Since:
    """From where stored messages are wanted: `["all"]`, `["new"]`, `["time", ns]`, `["ago", ns]` or `["at", [[guid, stream, next]]]`."""

    def __init__(self, packed: bytes) -> None:
        try:
            self._kind, self._value = msgspec.msgpack.decode(packed, type=tuple[str, Any])
            if self._kind == "at":
                places = msgspec.convert(self._value, list[tuple[str, str, _Offset]])
                self._places = {(broker, stream): offset for broker, stream, offset in places}
            elif self._kind in {"time", "ago"}:
                self._value = msgspec.convert(self._value, _Nanoseconds)
            elif self._kind not in {"all", "new"}:
                raise InvalidRule(f"since: {self._kind!r} is nothing to begin with", code=Code.INVALID_RULE)
        except msgspec.MsgspecError as error:
            raise InvalidRule(f"since: {error}") from error

    def offset(self, stream: Stream, guid: str, found: Callable[[int], object]) -> int | None:
        """None: it has to be looked for, and `found` is called with it."""
        if self._kind == "all":
            return stream.first
        if self._kind == "new":
            return stream.safe
        if self._kind == "at":
            # A stream that it does not name is one that came later.
            return min(self._places.get((guid, stream.config.name), stream.first), stream.safe)
        moment = self._value if self._kind == "time" else time.time_ns() - self._value
        return stream.begin_at(min(max(moment, 0), _MOST), found)


# What the hub's table calls.


def behind(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.replaying.fell_behind(*event[1:])
