"""Subscriptions that ask for stored messages: gives those that are behind what they missed, block by block.

A subscription is behind on a stream when it begins, and again whenever its connection or its consumer has no room. It reads
from the log then, never more at once than lets live messages through, until the engine says that it is live.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import Selection
from busway.broker.peers import Far, Reader
from busway.broker.streams.stream import Stream, takes
from busway.common import environment
from busway.errors import BusError, Code, InvalidRule, OutOfRange
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

_BLOCK: Final = 256 << 10
_MOST: Final = 2**63 - 1
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Place: TypeAlias = tuple[str, str, _Offset]
_Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]
_RETRY: Final = 1.0
_SOON: Final = 0.05
"""Seconds after which it is looked again whether something is written."""
_TURN: Final = 4
"""Blocks that are read before everybody else has a turn."""


@dataclass(slots=True, eq=False)
class _Asked:
    """What a subscription asks for."""

    pattern: str
    selection: Selection
    rules: bytes
    since: "_Since"
    far: set[int] = field(default_factory=set)
    """The streams of other nodes of which it misses nothing."""


@dataclass(slots=True, eq=False)
class _Cursor:
    conn: int
    sub: int
    stream: Stream | Far
    selection: Selection
    next: int | None
    """None: it is not known yet where it begins."""
    reader: Reader | None = None
    """Of what another node has."""
    held: bytes | None = None
    """The record that may be the last of the backlog."""
    again: Callable[[], object] = field(init=False)
    """To be called when what it reads next was fetched. One for all times, so that whoever fetches knows it again."""


class Replays:
    """All subscriptions of one hub that miss nothing."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._asked: dict[int, dict[int, _Asked]] = {}
        """What each subscription of each connection asks for."""
        self._behind: dict[int, dict[tuple[int, int], _Cursor]] = {}
        self._far: dict[int, Far] = {}
        """The streams of other nodes, by their numbers."""
        self._planned: set[int] = set()

    def begin(self, conn: int, sub: int, pattern: str, rules: bytes, since: bytes) -> None:
        """A SUBSCRIBE with SINCE was let through: it gets all from there on. Raises if it can't be understood."""
        where = _Since(since)
        selection = Selection(pattern, rules)
        asked = self._asked.setdefault(conn, {})[sub] = _Asked(pattern, selection, rules, where)
        for stream in self._hub.streams.by_name.values():
            if stream.takes(pattern):
                cursor = _Cursor(conn, sub, stream, selection, None)
                cursor.next = where.offset(stream, self._hub.guid, partial(self._begins, cursor))
                self._add(cursor)
        for far in self._far.values():
            self._follow_far(conn, sub, asked, far, late=False)

    def check(self, since: bytes, group: str) -> None:
        """Raises if this can't be understood, or can't be done."""
        if group:
            raise InvalidRule("since: a group shares messages as they come; who shares stored ones uses a channel")
        for (guid, name), offset in _Since(since).begins.items():
            stream = self._hub.streams.by_name.get(name)
            if guid == self._hub.guid and stream is not None and offset > stream.safe:
                raise OutOfRange(
                    f"since: the stream {name!r} has the offsets {stream.first} to {stream.safe - 1}, and none before {offset}: "
                    "it has lost its end, or that is a position of another one"
                )

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
        for conn, all_asked in self._asked.items():
            for sub, asked in all_asked.items():
                if not leave(asked.pattern):
                    self._add(_Cursor(conn, sub, stream, asked.selection, begin))

    def found_far(self, far: Far) -> None:
        """A stream of another node, or other topics of one: who misses nothing misses nothing of it either."""
        self._far[far.number] = far
        for conn, all_asked in self._asked.items():
            for sub, asked in all_asked.items():
                self._follow_far(conn, sub, asked, far, late=True)

    def _follow_far(self, conn: int, sub: int, asked: _Asked, far: Far, *, late: bool) -> None:
        if far.number in asked.far or not far.takes(asked.pattern):
            return
        asked.far.add(far.number)
        cursor = _Cursor(conn, sub, far, asked.selection, None, far.reader(asked.pattern, asked.rules))
        self._add(cursor)
        far.locate(*asked.since.far(far, late=late), partial(self._begins, cursor))

    def fell_behind(self, conn: int, sub: int, number: int, offset: int) -> None:
        """The engine had no room for a live record."""
        stream = next((one for one in self._hub.streams.by_name.values() if one.number == number), None)
        far = self._far.get(number)
        if (asked := self._asked.get(conn, {}).get(sub)) is None:
            return
        if far is not None:
            reader = far.reader(asked.pattern, asked.rules)
            self._behind_by(_Cursor(conn, sub, far, asked.selection, offset, reader))
        elif stream is not None:
            self._behind_by(_Cursor(conn, sub, stream, asked.selection, offset))
        self.plan(conn)

    def end(self, conn: int, sub: int) -> None:
        """A subscription is over."""
        self._asked.get(conn, {}).pop(sub, None)
        behind = self._behind.get(conn, {})
        for key in [key for key in behind if key[0] == sub]:
            del behind[key]

    def forget(self, conn: int) -> None:
        """A connection is over."""
        self._asked.pop(conn, None)
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
                name = cursor.stream.name
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
            found = self._fetch(cursor, cursor.next)
            if found is None:
                return False
            gone, first, behind, block, end = found
            if first > gone:
                engine.tell_gap(cursor.conn, sub, number, gone, first)
            cursor.next, cursor.held, live = engine.replay(
                cursor.conn, sub, number, block, behind, cursor.selection, cursor.held, end
            )
            if live:
                self._behind.get(cursor.conn, {}).pop(key, None)
                return False
            if end and behind <= gone:
                # Who answers for another node may have less than came from that node itself, and of what a stream
                # got back from its mirror the rest may not be written yet.
                self._hub.loop.call_later(_SOON if cursor.reader is None else _RETRY, self.plan, cursor.conn)
                return False
        return True

    def _fetch(self, cursor: _Cursor, offset: int) -> tuple[int, int, int, bytes, bool] | None:
        """What is gone from where, to where; where to read on, the records, and whether that is all."""
        if cursor.reader is not None:
            return cursor.reader.read(offset, _BLOCK, cursor.again)
        stream = cursor.stream
        assert isinstance(stream, Stream)
        if stream.awaited and offset > stream.safe:  # who had more before waits until that is here again
            self._hub.loop.call_later(_RETRY, self.plan, cursor.conn)
            return None
        found = stream.read(offset, _BLOCK, cursor.again)
        if found is None:
            return None
        first, following, block = found
        # Behind the end of the log it is lost for good, and what comes next is at these offsets again.
        return offset, first, max(following, min(offset, stream.log.next)), block, True


def offset_of(record: bytes) -> int:
    """Where a record lies in its stream."""
    return int.from_bytes(record[8:16], "little")


class _Since:
    """From where stored messages are wanted: `["all"]`, `["new"]`, `["time", ns]`, `["ago", ns]` or `["at", [[guid, stream, next]]]`.

    Who comes back says `["back", [places, kind, value]]`: places as of `at`, and one of the others for streams that they don't name.
    """

    def __init__(self, packed: bytes) -> None:
        try:
            self._kind, self._value = msgspec.msgpack.decode(packed, type=tuple[str, Any])
            self._places: dict[tuple[str, str], int] = {}
            self.begins: Mapping[tuple[str, str], int] = {}
            """Places that somebody has chosen who is not coming back."""
            places = []
            begins = self._kind == "at"
            if begins:
                places, self._kind = msgspec.convert(self._value, list[_Place]), "all"
            elif self._kind == "back":
                places, self._kind, self._value = msgspec.convert(self._value, tuple[list[_Place], str, Any])
            self._places = {(broker, stream): offset for broker, stream, offset in places}
            self.begins = self._places if begins else {}
            if self._kind in {"time", "ago"}:
                self._value = msgspec.convert(self._value, _Nanoseconds)
            elif self._kind not in {"all", "new"}:
                raise InvalidRule(f"since: {self._kind!r} is nothing to begin with", code=Code.INVALID_RULE)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRule(f"since: {error}") from error
        self._begun = environment.time_ns()

    def far(self, far: Far, *, late: bool) -> tuple[str, int]:
        """The same for a stream of another node, whoever has it: a kind of place, and its value."""
        if (place := self._places.get((far.guid, far.name))) is not None:
            return "offset", place
        if self._kind == "all":
            return "offset", 0
        if self._kind == "new":
            # One that is found later may have had messages before this began.
            return ("time", self._begun) if late else ("new", 0)
        moment = self._value if self._kind == "time" else self._begun - self._value
        return "time", min(max(moment, 0), _MOST)

    def offset(self, stream: Stream, guid: str, found: Callable[[int], object]) -> int | None:
        """None: it has to be looked for, and `found` is called with it."""
        if (place := self._places.get((guid, stream.config.name))) is not None:
            return place if stream.awaited else min(place, stream.safe)
        if self._kind == "all":
            return stream.first
        if self._kind == "new":
            return stream.safe
        moment = self._value if self._kind == "time" else environment.time_ns() - self._value
        return stream.begin_at(min(max(moment, 0), _MOST), found)


# What the hub's table calls.


def behind(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.replays.fell_behind(*event[1:])
