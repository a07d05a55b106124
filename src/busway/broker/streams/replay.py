"""Replays: delivers stored messages to subscriptions with `since`, block by block, until they are live.

The hub calls this module. A subscription is behind on a stream when it begins, and whenever its connection or its
consumer has no room. Then it reads from the log, in turns that let live messages through, until the engine reports that
it is live.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import Selection
from busway.broker.peers import PeerStream, Reader
from busway.broker.streams.stream import Stream, takes
from busway.broker.streams.table import StreamTable
from busway.common import environment
from busway.errors import BusError, Code, InvalidRule, OutOfRange
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

_BLOCK: Final = 256 << 10
_MOST: Final = 2**63 - 1
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Position: TypeAlias = tuple[str, str, _Offset]
_Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]
_RETRY: Final = 1.0
"""Seconds until a failed read is retried."""
_SOON: Final = 0.05
"""Seconds until the end of a stream is read again."""
_TURN: Final = 4
"""Blocks that are read before a connection yields to the event loop."""


@dataclass(slots=True, eq=False)
class _Asked:
    """The selection of a subscription with `since`."""

    pattern: str
    selection: Selection
    rules: bytes
    since: "_Since"
    remote: set[int] = field(default_factory=set)
    """The streams of other nodes that the subscription follows."""


@dataclass(slots=True, eq=False)
class _Cursor:
    """The position of a subscription that is behind on a stream."""

    conn: int
    sub: int
    stream: Stream | PeerStream
    selection: Selection
    next: int | None
    """The next offset; None: the start position is not known yet."""
    reader: Reader | None = None
    """The reader of a stream of another node."""
    held: bytes | None = None
    """The record that may be the last of the backlog."""
    again: Callable[[], object] = field(init=False)
    """Is called when the next records were fetched. It stays the same object, so that a fetch can recognise it."""


class Replays:
    """All subscriptions of one broker that ask for stored messages."""

    def __init__(self, runtime: "Runtime", streams: StreamTable) -> None:
        self._runtime = runtime
        self._streams = streams
        self._asked: dict[int, dict[int, _Asked]] = {}
        """The subscriptions, by connection and number."""
        self._behind: dict[int, dict[tuple[int, int], _Cursor]] = {}
        """The cursors of each connection, by the numbers of the subscription and of the stream."""
        self._remote: dict[int, PeerStream] = {}
        """The streams of other nodes, by their numbers."""
        self._planned: set[int] = set()
        """Connections for which reading is scheduled."""

    def begin(self, conn: int, sub: int, pattern: str, rules: bytes, since: bytes) -> None:
        """Begin the replay for a SUBSCRIBE with SINCE that the engine has entered. Raises if `since` is invalid."""
        where = _Since(since)
        selection = Selection(pattern, rules)
        asked = self._asked.setdefault(conn, {})[sub] = _Asked(pattern, selection, rules, where)
        for stream in self._streams.by_name.values():
            if stream.takes(pattern):
                cursor = _Cursor(conn, sub, stream, selection, None)
                cursor.next = where.offset(stream, self._runtime.guid, partial(self._begins, cursor))
                self._add(cursor)
        for remote in self._remote.values():
            self._follow_remote(conn, sub, asked, remote, late=False)

    def check(self, since: bytes, group: str) -> None:
        """Raise if `since` is invalid or out of range, or if it is combined with a group."""
        if group:
            text = "since= and group= can't be combined; to share stored messages among consumers use a channel"
            raise InvalidRule(text)
        for (guid, name), offset in _Since(since).begins.items():
            stream = self._streams.by_name.get(name)
            if guid == self._runtime.guid and stream is not None and offset > stream.safe:
                raise OutOfRange(
                    f"since: the stream {name!r} has the offsets {stream.first} to {stream.safe - 1}, and none "
                    f"before {offset}: it has lost its end, or that is a position of another stream"
                )

    def _add(self, cursor: _Cursor) -> None:
        stream = cursor.stream
        self._runtime.engine.add_cursor(cursor.conn, cursor.sub, stream.number)
        self._behind_by(cursor)
        if cursor.next is not None:
            self._begins(cursor, cursor.next)

    def _begins(self, cursor: _Cursor, offset: int) -> None:
        """Begin reading at the start position, unless the subscription has ended."""
        conn, sub, number = cursor.conn, cursor.sub, cursor.stream.number
        if self._behind.get(conn, {}).get((sub, number)) is cursor:
            cursor.next = offset
            # An empty gap reports the start position, so that the client can resume from it after a lost connection.
            self._runtime.engine.send_gap(conn, sub, number, offset, offset)
            self.plan(conn)

    def _behind_by(self, cursor: _Cursor) -> None:
        cursor.again = partial(self._fetched, cursor)
        self._behind.setdefault(cursor.conn, {})[cursor.sub, cursor.stream.number] = cursor

    def _fetched(self, cursor: _Cursor) -> None:
        if self._behind.get(cursor.conn, {}).get((cursor.sub, cursor.stream.number)) is cursor:
            self.plan(cursor.conn)

    def added(self, stream: Stream) -> None:
        """A new stream: matching subscriptions follow it from its first message."""
        self._follow(stream, lambda pattern: not stream.takes(pattern), stream.first)

    def widened(self, stream: Stream, before: StreamConfig) -> None:
        """A stream takes more topics than before: matching subscriptions follow it from now on."""
        self._follow(stream, lambda pattern: takes(before, pattern) or not stream.takes(pattern), stream.safe)

    def _follow(self, stream: Stream, leave: Callable[[str], bool], begin: int) -> None:
        for conn, all_asked in self._asked.items():
            for sub, asked in all_asked.items():
                if not leave(asked.pattern):
                    self._add(_Cursor(conn, sub, stream, asked.selection, begin))

    def found_remote(self, stream: PeerStream) -> None:
        """A stream of another node, or more topics of one: matching subscriptions follow it."""
        self._remote[stream.number] = stream
        for conn, all_asked in self._asked.items():
            for sub, asked in all_asked.items():
                self._follow_remote(conn, sub, asked, stream, late=True)

    def _follow_remote(self, conn: int, sub: int, asked: _Asked, stream: PeerStream, *, late: bool) -> None:
        if stream.number in asked.remote or not stream.takes(asked.pattern):
            return
        asked.remote.add(stream.number)
        cursor = _Cursor(conn, sub, stream, asked.selection, None, stream.reader(asked.pattern, asked.rules))
        self._add(cursor)
        stream.locate(*asked.since.remote(stream, late=late), partial(self._begins, cursor))

    def fell_behind(self, conn: int, sub: int, number: int, offset: int) -> None:
        """The engine had no room for a live record: replay from this offset."""
        stream = next((one for one in self._streams.by_name.values() if one.number == number), None)
        remote = self._remote.get(number)
        if (asked := self._asked.get(conn, {}).get(sub)) is None:
            return
        if remote is not None:
            reader = remote.reader(asked.pattern, asked.rules)
            self._behind_by(_Cursor(conn, sub, remote, asked.selection, offset, reader))
        elif stream is not None:
            self._behind_by(_Cursor(conn, sub, stream, asked.selection, offset))
        self.plan(conn)

    def end(self, conn: int, sub: int) -> None:
        """Forget a subscription that has ended."""
        self._asked.get(conn, {}).pop(sub, None)
        behind = self._behind.get(conn, {})
        for key in [key for key in behind if key[0] == sub]:
            del behind[key]

    def forget(self, conn: int) -> None:
        """Forget a connection that has ended."""
        self._asked.pop(conn, None)
        self._behind.pop(conn, None)

    def removed(self, stream: Stream) -> int:
        """Report a removed stream as a gap to the subscriptions that are behind on it. Returns how many those are."""
        count = 0
        for conn, behind in self._behind.items():
            for key in [key for key in behind if key[1] == stream.number]:
                cursor = behind.pop(key)
                begin = cursor.next if cursor.held is None else offset_of(cursor.held)
                if begin is not None and begin < stream.safe:
                    self._runtime.engine.send_gap(conn, key[0], stream.number, begin, stream.safe)
                    count += 1
        return count

    # Reading.

    def plan(self, conn: int) -> None:
        """Schedule reading for a connection."""
        if conn not in self._planned and self._behind.get(conn):
            self._planned.add(conn)
            self._runtime.loop.call_soon(self._work, conn)

    def _work(self, conn: int) -> None:
        self._planned.discard(conn)
        more = False
        for key, cursor in list(self._behind.get(conn, {}).items()):
            try:
                more |= self._read(key, cursor)
            except BusError as error:
                name = cursor.stream.name
                log.error("stream %r can't be read, and is retried: %s", name, error)  # noqa: TRY400, a disk error
                self._runtime.loop.call_later(_RETRY, self.plan, conn)
        self._runtime.flush()
        if more:
            self.plan(conn)

    def _read(self, key: tuple[int, int], cursor: _Cursor) -> bool:
        """Deliver some blocks. True: there are more, and the connection has room."""
        engine, (sub, number) = self._runtime.engine, key
        for _ in range(_TURN):
            if cursor.next is None or not engine.has_room(cursor.conn, sub):
                return False
            found = self._fetch(cursor, cursor.next)
            if found is None:
                return False
            gone, first, behind, block, end = found
            if first > gone:
                engine.send_gap(cursor.conn, sub, number, gone, first)
            cursor.next, cursor.held, live = engine.replay(
                cursor.conn, sub, number, block, behind, cursor.selection, cursor.held, end
            )
            if live:
                self._behind.get(cursor.conn, {}).pop(key, None)
                return False
            if end and behind <= gone:
                # The mirror of another node may have less than that node has sent itself, and a stream that is being
                # restored from its mirror may not be completely written yet.
                self._runtime.loop.call_later(_SOON if cursor.reader is None else _RETRY, self.plan, cursor.conn)
                return False
        return True

    def _fetch(self, cursor: _Cursor, offset: int) -> tuple[int, int, int, bytes, bool] | None:
        """Read records: begin and end of a gap, the offset to read next, the records, and whether these are all."""
        if cursor.reader is not None:
            return cursor.reader.read(offset, _BLOCK, cursor.again)
        stream = cursor.stream
        assert isinstance(stream, Stream)
        if stream.awaited and offset > stream.safe:  # the subscription had more: wait until it is restored
            self._runtime.loop.call_later(_RETRY, self.plan, cursor.conn)
            return None
        found = stream.read(offset, _BLOCK, cursor.again)
        if found is None:
            return None
        first, following, block = found
        # Records behind the end of the log are lost for good, and new ones get these offsets.
        return offset, first, max(following, min(offset, stream.log.next)), block, True


def offset_of(record: bytes) -> int:
    """The offset of a record in its stream."""
    return int.from_bytes(record[8:16], "little")


class _Since:
    """The start of a replay: `["all"]`, `["new"]`, `["time", ns]`, `["ago", ns]` or `["at", [[guid, stream, next]]]`.

    A client that reconnects sends `["back", [positions, kind, value]]`: positions as in `at`, and a kind for all other
    streams.
    """

    def __init__(self, packed: bytes) -> None:
        try:
            self._kind, self._value = msgspec.msgpack.decode(packed, type=tuple[str, Any])
            self._positions: dict[tuple[str, str], int] = {}
            self.begins: Mapping[tuple[str, str], int] = {}
            """Positions that the user has chosen, and not those of a client that reconnects."""
            positions = []
            begins = self._kind == "at"
            if begins:
                positions, self._kind = msgspec.convert(self._value, list[_Position]), "all"
            elif self._kind == "back":
                positions, self._kind, self._value = msgspec.convert(self._value, tuple[list[_Position], str, Any])
            self._positions = {(broker, stream): offset for broker, stream, offset in positions}
            self.begins = self._positions if begins else {}
            if self._kind in {"time", "ago"}:
                self._value = msgspec.convert(self._value, _Nanoseconds)
            elif self._kind not in {"all", "new"}:
                raise InvalidRule(
                    f"since: {self._kind!r} is no start; use all, new, time, ago or at", code=Code.INVALID_RULE
                )
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRule(f"since: {error}") from error
        self._begun = environment.time_ns()

    def remote(self, stream: PeerStream, *, late: bool) -> tuple[str, int]:
        """The start in a stream of another node: the kind of position, and its value."""
        if (position := self._positions.get((stream.guid, stream.name))) is not None:
            return "offset", position
        if self._kind == "all":
            return "offset", 0
        if self._kind == "new":
            # A stream that is found later may have older messages than the subscription.
            return ("time", self._begun) if late else ("new", 0)
        moment = self._value if self._kind == "time" else self._begun - self._value
        return "time", min(max(moment, 0), _MOST)

    def offset(self, stream: Stream, guid: str, found: Callable[[int], object]) -> int | None:
        """The start in a stream of this broker. None: the stream searches it, and `found` is called with it."""
        if (position := self._positions.get((guid, stream.config.name))) is not None:
            return position if stream.awaited else min(position, stream.safe)
        if self._kind == "all":
            return stream.first
        if self._kind == "new":
            return stream.safe
        moment = self._value if self._kind == "time" else environment.time_ns() - self._value
        return stream.begin_at(min(max(moment, 0), _MOST), found)
