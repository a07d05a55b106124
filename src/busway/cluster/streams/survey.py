"""Surveys all nodes about their parts of streams and channels: their figures, seeks and dead letters.

The broker's admin services call it through `peers`. The result has an answer or an error for every node of the
cluster. For a node that is not linked, a node that delivers from its channels or has replicas of its streams answers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from busway.broker.admin.survey import NodeAnswer, own_figures
from busway.broker.channels.dead_letters.redrive import letters_of, look, redrive
from busway.broker.channels.frames import OneMessage
from busway.broker.streams.stream import Stream
from busway.cluster.links.calls import Call, Calls
from busway.cluster.node import Node
from busway.cluster.protocol import SELF, SURVEY
from busway.errors import BusError, Code, Disconnected, Rejected, StoreFailed, Timeout
from busway.streams import ChannelInfo, StreamInfo, is_name

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime
    from busway.broker.streams.table import StreamTable
    from busway.cluster.members.membership import Membership

_PATIENCE: Final = 5.0
"""Seconds to wait for the answer of a node."""
_LIST: Final = "list"
_SEEK: Final = "seek"
_STREAMS: Final = "streams"
_DEAD: Final = "dead"
_REDRIVE: Final = "redrive"
_NONE: Final = ("first", None)
"""The start position of a question that needs none."""
_ONE: Final = {_SEEK, _DEAD, _REDRIVE}
"""Requests about one channel."""

_Result: TypeAlias = tuple[list[dict[str, Any]], int, list[dict[str, Any]], list[int]]
"""The fields of Findings, as builtins."""


class Question(msgspec.Struct, array_like=True, frozen=True):
    """What one node asks of another about a stream or channel."""

    what: Literal["list", "seek", "streams", "dead", "redrive"]
    stream: str
    """Empty: all streams."""
    channel: str | None
    """None: all channels of the stream."""
    start: tuple[str, Any] = _NONE
    """The target position of a seek, or the letters."""
    guid: str = ""
    """The owner of the part; empty: the node that is asked."""

    def __post_init__(self) -> None:
        named = is_name(self.stream) or (self.what == _STREAMS and not self.stream)
        if not named or not (is_name(self.channel) if self.channel is not None else self.what not in _ONE):
            raise ValueError("not a valid name of a stream or channel")


class Findings(msgspec.Struct, array_like=True):
    """The answer: listed channels, the offset of a seek, streams, and states of dead letters."""

    channels: tuple[ChannelInfo, ...]
    offset: int
    streams: tuple[StreamInfo, ...]
    states: tuple[int, ...]


ASK: Final = Call[Question, Findings](SURVEY, "survey", Question, Findings)


class Survey:
    """The survey requests of one node, and its answers to other nodes."""

    def __init__(
        self,
        runtime: "Runtime",
        table: "StreamTable",
        channels: "Callable[[], Channels]",
        calls: Calls,
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        elsewhere: Callable[[str], Iterable[str]],
        why: Callable[[str, str], str | None],
        members: Callable[[], "Membership | None"],
    ) -> None:
        """`elsewhere` returns the owners of a stream's parts; `why`, the reason why no node delivers from a replica."""
        self._runtime = runtime
        self._table = table
        self._channels = channels
        self._calls = calls
        self._elsewhere = elsewhere
        self._why = why
        self._members = members
        self._copies = copies
        calls.serve(ASK, self._answer)

    # Requests of this node.

    async def ask(self, request: Question, guid: str | None = None) -> list[NodeAnswer]:
        """The answers of all other nodes, or of one node only. No answers before the broker listens."""
        if (members := self._members()) is None:
            return []
        linked = {node.guid: (conn, node) for conn, node in self._calls.nodes.items()}
        wanted = {owner: link for owner, link in linked.items() if guid in {None, owner}}
        answers = await asyncio.gather(*(self._ask(conn, node, request) for conn, node in wanted.values()))
        absent = [node for node in members.known if node.guid not in linked and guid in {None, node.guid}]
        answers += await asyncio.gather(*(self._ask_for(node, request) for node in absent))
        known = {self._runtime.guid, *linked, *(node.guid for node in absent)}
        forgotten = [owner for owner in self._elsewhere(request.stream) if owner not in known and guid in {None, owner}]
        for answer in await asyncio.gather(
            *(self._ask_for(_forgotten(owner, members), request) for owner in forgotten)
        ):
            if answer.code != Code.OK or not answer.error:  # otherwise no linked node knows this part
                answers.append(answer)
        if guid is None:  # a node that was never seen may have a part too
            answers += [
                NodeAnswer("", listed.name or listed.addresses[0], error=listed.why or "it was not seen yet")
                for listed in members.missing
            ]
        return answers

    async def _ask_for(self, node: Node, request: Question) -> NodeAnswer:
        """The part of a node that is not linked, as answered by this node or another one on its behalf."""
        request = msgspec.structs.replace(request, guid=node.guid)
        try:
            return _answer_of(node, await self._answer(SELF, request))
        except BusError as error:
            if error.code != Code.NO_STREAM:
                return NodeAnswer(node.guid, _name_of(node), code=error.code or Code.STORE_FAILED, error=error.reason)
        links = list(self._calls.nodes.items())
        for answer in await asyncio.gather(*(self._ask(conn, other, request) for conn, other in links)):
            if not answer.error or answer.code not in {Code.OK, Code.NO_STREAM}:
                return answer._replace(guid=node.guid, node=_name_of(node))
        return NodeAnswer(node.guid, _name_of(node), error="the node is not linked")

    async def _ask(self, conn: int, node: Node, request: Question) -> NodeAnswer:
        try:
            return _answer_of(node, await self._calls.call(conn, ASK, request, _PATIENCE))
        except (Disconnected, Timeout) as error:
            return NodeAnswer(node.guid, _name_of(node), error=error.reason)
        except BusError as error:
            return NodeAnswer(node.guid, _name_of(node), code=error.code or Code.STORE_FAILED, error=error.reason)

    # Requests of other nodes.

    async def _answer(self, _: int, request: Question) -> Findings:
        return msgspec.convert(await self._work(request), Findings)

    async def _work(self, request: Question) -> _Result:
        what, stream, channel, start, guid = msgspec.structs.astuple(request)
        if what == _STREAMS:
            return [], 0, self._stream_figures(stream, guid), []
        if what in {_DEAD, _REDRIVE}:
            return [], 0, [], await self._letters(what, stream, channel, start, guid)
        channels = self._channels()
        if guid in {"", self._runtime.guid}:
            found = channels.found(stream, channel)
        else:
            if (why := self._why(guid, stream)) is not None:
                raise StoreFailed(why)
            found, start = channels.ownership.found(guid, stream, channel), _in_replica(start)
        if what == _LIST:
            return [own_figures(driver, channels.consumers) for driver in found], 0, [], []
        return [], await channels.seek(found[0], start), [], []

    async def _letters(
        self, what: str, stream: str, channel: str | None, start: tuple[str, Any], guid: str
    ) -> list[int]:
        """Look up or redrive dead letters. Only the node that owns the channel can."""
        channels, letters = self._channels(), letters_of(start[1])
        if guid in {"", self._runtime.guid}:
            driver = channels.get(stream, channel or "")
        else:
            (driver,) = channels.ownership.found(guid, stream, channel or "")
        return await (look(driver, letters) if what == _DEAD else redrive(self._runtime, driver, letters))

    def _stream_figures(self, name: str, guid: str) -> list[dict[str, Any]]:
        """Figures of this node's streams, or of its replicas of another node's."""
        if guid in {"", self._runtime.guid}:
            guid, found = self._runtime.guid, self._table.by_name
        else:
            found = {stream: copy for (owner, stream), copy in self._copies().items() if owner == guid}
        chosen = [stream for key, stream in found.items() if name in {"", key}]
        if not chosen and (name or guid != self._runtime.guid):
            raise Rejected(f"this node has no stream {name!r} of node {guid}", code=Code.NO_STREAM)
        return [stream.figures() | {"broker": guid, "channels": ()} for stream in chosen]


def _in_replica(start: tuple[str, Any]) -> tuple[str, Any]:
    """A start position of the owner's part, in the form for a replica."""
    kind, value = start
    if kind == "position":
        return "offset", msgspec.convert(value, tuple[str, int])[1]
    if kind == "message":
        place = msgspec.convert(value, OneMessage)
        return kind, (place.offset, place.id)
    return start


def _answer_of(node: Node, found: Findings) -> NodeAnswer:
    return NodeAnswer(
        node.guid, _name_of(node), found.channels, found.offset, streams=found.streams, states=found.states
    )


def _forgotten(guid: str, members: "Membership") -> Node:
    return Node(guid, 1, members.me.cluster)


def _name_of(node: Node) -> str:
    return node.name or node.guid[:8]
