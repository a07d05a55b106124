"""Streams and channels as a whole, over the parts that all nodes have of them: asks every node how its part stands, or has a channel go elsewhere.

A driver. Who asks hears of every node of the cluster: its answer, or why there is none. For a node that is gone whoever hands out of its
channels meanwhile is asked, and of streams whoever has copies.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

from busway.broker.admin.survey import NodeAnswer, own_figures
from busway.broker.channels.dead_letters.redrive import Letter, letters_of, look, redrive
from busway.broker.channels.frames import OneMessage
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import SURVEY, SURVEYED, NodeProtocolHandler
from busway.errors import BusError, Code, LimitExceeded, Rejected, StoreFailed
from busway.streams import ChannelInfo, StreamInfo, is_name

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.cluster.members.membership import Membership

_PATIENCE: Final = 5.0
"""Seconds that another node has for an answer."""
_MOST: Final = 1024
"""Questions of one node that may be under way here."""
_LIST: Final = "list"
_SEEK: Final = "seek"
_STREAMS: Final = "streams"
_DEAD: Final = "dead"
_REDRIVE: Final = "redrive"
_ONE: Final = {_SEEK, _DEAD, _REDRIVE}
"""Questions about one channel."""

_Question: TypeAlias = tuple[
    Literal["list", "seek", "streams", "dead", "redrive"], str, str | None, tuple[str, Any], str
]
"""What, the stream (empty: all), the channel or all of them, where to or which letters, and in whose part: that of the node with this guid."""
_Said: TypeAlias = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=2**31)], str, list[ChannelInfo], int, list[StreamInfo], list[int]
]
"""Code and text, of a list the channels, of a seek the offset, of streams those, of dead letters what became of each."""
_Found: TypeAlias = tuple[list[dict[str, Any]], int, list[dict[str, Any]], list[int]]

_encode = msgspec.msgpack.Encoder().encode
_questions: Final = msgspec.msgpack.Decoder(_Question)
_answers: Final = msgspec.msgpack.Decoder(_Said)


class Survey(NodeProtocolHandler):
    """What nodes ask each other about their parts of channels."""

    kinds = frozenset({SURVEY, SURVEYED})

    def __init__(
        self,
        hub: "Hub",
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        elsewhere: Callable[[str], Iterable[str]],
        why: Callable[[str, str], str | None],
    ) -> None:
        """`elsewhere` are the guids of nodes with parts of a stream; `why` is why nobody delivers from a copied stream."""
        self._hub = hub
        self._elsewhere = elsewhere
        self._why = why
        self._copies = copies
        self._links: dict[int, Node] = {}
        self._waiting: dict[int, tuple[int, asyncio.Future[_Said | None]]] = {}
        """Questions to others: the link, and who waits. None: the link has ended."""
        self._last = 0
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Answers that are made, and for which link."""

    # Questions of this node.

    async def listed(self, stream: str, channel: str | None, members: "Membership") -> list[NodeAnswer]:
        """How the parts of a channel stand, or of all channels of a stream, at every other node."""
        return await self._everywhere((_LIST, stream, channel, ("first", None), ""), members)

    async def streams(self, name: str | None, members: "Membership") -> list[NodeAnswer]:
        """How the parts of a stream stand at every other node, or those of all streams."""
        return await self._everywhere((_STREAMS, name or "", None, ("first", None), ""), members)

    async def sought(
        self, stream: str, channel: str, start: tuple[str, Any], members: "Membership", guid: str | None
    ) -> list[NodeAnswer]:
        """Have a channel go to another place in the parts of every other node, or in that of one alone."""
        return await self._everywhere((_SEEK, stream, channel, start, ""), members, guid)

    async def letters(
        self,
        what: Literal["dead", "redrive"],
        stream: str,
        channel: str,
        letters: Sequence[Letter],
        members: "Membership",
        guid: str,
    ) -> list[NodeAnswer]:
        """Ask one node what became of dead letters, or have it send them back."""
        return await self._everywhere((what, stream, channel, ("letters", letters), ""), members, guid)

    async def _everywhere(
        self, question: _Question, members: "Membership", guid: str | None = None
    ) -> list[NodeAnswer]:
        linked = {node.guid: (conn, node) for conn, node in self._links.items()}
        wanted = {one: link for one, link in linked.items() if guid in {None, one}}
        answers = await asyncio.gather(*(self._ask(conn, node, question) for conn, node in wanted.values()))
        away = [node for node in members.known if node.guid not in linked and guid in {None, node.guid}]
        answers += await asyncio.gather(*(self._ask_for(node, question) for node in away))
        known = {self._hub.guid, *linked, *(node.guid for node in away)}
        forgotten = [one for one in self._elsewhere(question[1]) if one not in known and guid in {None, one}]
        for answer in await asyncio.gather(*(self._ask_for(_forgotten(one, members), question) for one in forgotten)):
            if answer.code != Code.OK or not answer.error:  # else nobody has anything to say of it
                answers.append(answer)
        if guid is None:  # who was never seen may have a part all the same
            answers += [
                NodeAnswer("", one.name or one.addresses[0], error=one.why or "it was not seen yet")
                for one in members.missing
            ]
        return answers

    async def _ask_for(self, node: Node, question: _Question) -> NodeAnswer:
        """The part of a node that is gone, of whoever hands out of it: this node, or one of the others."""
        question = (*question[:4], node.guid)
        try:
            channels, offset, streams, _ = await self._answered(question)
            here = msgspec.convert(channels, list[ChannelInfo])
            copies = msgspec.convert(streams, list[StreamInfo])
            return NodeAnswer(node.guid, _named(node), tuple(here), offset, streams=tuple(copies))
        except BusError as error:
            if error.code != Code.NO_STREAM:
                return NodeAnswer(node.guid, _named(node), code=error.code or Code.STORE_FAILED, error=error.reason)
        links = list(self._links.items())
        for answer in await asyncio.gather(*(self._ask(conn, other, question) for conn, other in links)):
            if not answer.error or answer.code not in {Code.OK, Code.NO_STREAM}:
                return answer._replace(guid=node.guid, node=_named(node))
        return NodeAnswer(node.guid, _named(node), error="it is not linked")

    async def _ask(self, conn: int, node: Node, question: _Question) -> NodeAnswer:
        self._last += 1
        number = self._last
        told = self._hub.loop.create_future()
        self._waiting[number] = conn, told
        self._hub.engine.node(conn, SURVEY, number, _encode(question))
        self._hub.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                said = await told
        except TimeoutError:
            return NodeAnswer(node.guid, _named(node), error=f"no answer within {_PATIENCE:g} s")
        finally:
            self._waiting.pop(number, None)
        if said is None:
            return NodeAnswer(node.guid, _named(node), error="its link has ended")
        code, text, channels, offset, streams, states = said
        why = text if code != Code.OK else ""
        return NodeAnswer(node.guid, _named(node), tuple(channels), offset, code, why, tuple(streams), tuple(states))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        for link, told in list(self._waiting.values()):
            if link == conn and not told.done():
                told.set_result(None)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        try:
            if kind == SURVEYED:
                link, told = self._waiting.get(number, (conn, None))
                if link != conn or number > self._last:
                    raise Stranger("an answer that nobody has asked for")
                if told is not None and not told.done():  # else it came too late
                    told.set_result(_answers.decode(body))
                return
            question = _questions.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise error if isinstance(error, Stranger) else Stranger(f"a survey: {error}") from error
        what, stream, channel, _, _ = question
        named = is_name(stream) or (what == _STREAMS and not stream)
        if not named or not (is_name(channel) if channel is not None else what not in _ONE):
            raise Stranger("a survey of what is no name")
        if sum(link == conn for link in self._tasks.values()) >= _MOST:
            raise Stranger(f"{_MOST} surveys at once")
        self._begin(conn, number, self._answered(question))

    # Questions of other nodes.

    def _begin(self, conn: int, number: int, work: Coroutine[Any, Any, _Found]) -> None:
        task = self._hub.loop.create_task(self._answer(conn, self._links[conn], number, work), name="busway survey")
        self._tasks[task] = conn
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _answer(self, conn: int, node: Node, number: int, work: Coroutine[Any, Any, _Found]) -> None:
        try:
            channels, offset, streams, states = await work
            said = _encode((int(Code.OK), "", channels, offset, streams, states))
            if len(said) > node.frame:
                what = f"{len(channels)} channels" if channels else f"{len(streams)} streams"
                raise LimitExceeded(f"{what} are more than one answer holds")  # noqa: TRY301 - told as others
        except BusError as error:
            said = _encode((int(error.code or Code.STORE_FAILED), error.reason, (), 0, (), ()))
        except msgspec.MsgspecError as error:
            said = _encode((int(Code.INVALID_SETTING), str(error), (), 0, (), ()))
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, None, "a survey")
            return
        if self._links.get(conn) is node:
            self._hub.engine.node(conn, SURVEYED, number, said)
            self._hub.flush()

    async def _answered(self, question: _Question) -> _Found:
        what, stream, channel, start, guid = question
        if what == _STREAMS:
            return [], 0, self._shown(stream, guid), []
        if what in {_DEAD, _REDRIVE}:
            return [], 0, [], await self._letters(what, stream, channel, start, guid)
        delivering = self._hub.channels
        if guid in {"", self._hub.guid}:
            found = delivering.found(stream, channel)
        else:
            if (why := self._why(guid, stream)) is not None:
                raise StoreFailed(why)
            found, start = delivering.ownership.found(guid, stream, channel), _there(start)
            if what == _SEEK and not self._hub.peers.channels.owns(guid):
                raise StoreFailed("whose turn it is to hand out of it is not sure now")
        if what == _LIST:
            return [own_figures(self._hub, one) for one in found], 0, [], []
        return [], await delivering.seek(found[0], start), [], []

    async def _letters(
        self, what: str, stream: str, channel: str | None, start: tuple[str, Any], guid: str
    ) -> list[int]:
        """Of the own part only: letters go back to a channel at the node that has its messages."""
        if guid not in {"", self._hub.guid}:
            raise Rejected(
                f"this node can't redrive dead letters of the stream {stream!r}: their messages are at the node {guid}",
                code=Code.NO_STREAM,
            )
        driver, letters = self._hub.channels.get(stream, channel or ""), letters_of(start[1])
        return await (look(driver, letters) if what == _DEAD else redrive(self._hub, driver, letters))

    def _shown(self, name: str, guid: str) -> list[dict[str, Any]]:
        """Figures of streams here: of this node, or copies of those of another."""
        if guid in {"", self._hub.guid}:
            guid, found = self._hub.guid, self._hub.streams.by_name
        else:
            found = {one: copy for (owner, one), copy in self._copies().items() if owner == guid}
        chosen = [stream for one, stream in found.items() if name in {"", one}]
        if not chosen and (name or guid != self._hub.guid):
            raise Rejected(f"there is no stream {name!r} of {guid} here", code=Code.NO_STREAM)
        return [stream.figures() | {"broker": guid, "channels": ()} for stream in chosen]


def _there(start: tuple[str, Any]) -> tuple[str, Any]:
    """A place in the part of a node, for who has a copy of that part."""
    kind, value = start
    if kind == "position":
        return "offset", msgspec.convert(value, tuple[str, int])[1]
    if kind == "message":
        place = msgspec.convert(value, OneMessage)
        return kind, (place.offset, place.id)
    return start


def _forgotten(guid: str, members: "Membership") -> Node:
    return Node(guid, 1, members.me.cluster)


def _named(node: Node) -> str:
    return node.name or node.guid[:8]
