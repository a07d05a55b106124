"""Surveys all nodes about their parts of streams and channels: their figures, seeks and dead letters.

The broker's admin services call it through `peers`, and `links` for frames. The result has an answer or an
error for every node of the cluster. For a node that is not linked, a node that delivers from its channels or has
replicas of its streams answers.
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
"""Seconds to wait for the answer of a node."""
_MOST: Final = 1024
"""Requests of one node that may be in progress here."""
_LIST: Final = "list"
_SEEK: Final = "seek"
_STREAMS: Final = "streams"
_DEAD: Final = "dead"
_REDRIVE: Final = "redrive"
_ONE: Final = {_SEEK, _DEAD, _REDRIVE}
"""Requests about one channel."""

_Request: TypeAlias = tuple[
    Literal["list", "seek", "streams", "dead", "redrive"], str, str | None, tuple[str, Any], str
]
"""Kind, stream (empty: all), channel (None: all), target position or letters, and the guid of the part's owner."""
_Answer: TypeAlias = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=2**31)], str, list[ChannelInfo], int, list[StreamInfo], list[int]
]
"""Code, text, listed channels, offset of a seek, streams, and states of dead letters."""
_Result: TypeAlias = tuple[list[dict[str, Any]], int, list[dict[str, Any]], list[int]]

_encode = msgspec.msgpack.Encoder().encode
_requests: Final = msgspec.msgpack.Decoder(_Request)
_answers: Final = msgspec.msgpack.Decoder(_Answer)


class Survey(NodeProtocolHandler):
    """The survey requests of one node, and its answers to other nodes."""

    kinds = frozenset({SURVEY, SURVEYED})

    def __init__(
        self,
        hub: "Hub",
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        elsewhere: Callable[[str], Iterable[str]],
        why: Callable[[str, str], str | None],
    ) -> None:
        """`elsewhere` returns the owners of a stream's parts; `why`, the reason why no node delivers from a replica."""
        self._hub = hub
        self._elsewhere = elsewhere
        self._why = why
        self._copies = copies
        self._links: dict[int, Node] = {}
        self._waiting: dict[int, tuple[int, asyncio.Future[_Answer | None]]] = {}
        """Open requests: the link and the future of the answer. None as a result: the link has ended."""
        self._last = 0
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Answers in progress, and their links."""

    # Requests of this node.

    async def listed(self, stream: str, channel: str | None, members: "Membership") -> list[NodeAnswer]:
        """The figures of a channel, or of all channels of a stream, at every other node."""
        return await self._everywhere((_LIST, stream, channel, ("first", None), ""), members)

    async def streams(self, name: str | None, members: "Membership") -> list[NodeAnswer]:
        """The figures of a stream, or of all streams, at every other node."""
        return await self._everywhere((_STREAMS, name or "", None, ("first", None), ""), members)

    async def seek(
        self, stream: str, channel: str, start: tuple[str, Any], members: "Membership", guid: str | None
    ) -> list[NodeAnswer]:
        """Seek a channel in the parts of every other node, or of one node only."""
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
        """Ask one node for the states of dead letters, or have it redrive them."""
        return await self._everywhere((what, stream, channel, ("letters", letters), ""), members, guid)

    async def _everywhere(self, request: _Request, members: "Membership", guid: str | None = None) -> list[NodeAnswer]:
        linked = {node.guid: (conn, node) for conn, node in self._links.items()}
        wanted = {owner: link for owner, link in linked.items() if guid in {None, owner}}
        answers = await asyncio.gather(*(self._ask(conn, node, request) for conn, node in wanted.values()))
        absent = [node for node in members.known if node.guid not in linked and guid in {None, node.guid}]
        answers += await asyncio.gather(*(self._ask_for(node, request) for node in absent))
        known = {self._hub.guid, *linked, *(node.guid for node in absent)}
        forgotten = [owner for owner in self._elsewhere(request[1]) if owner not in known and guid in {None, owner}]
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

    async def _ask_for(self, node: Node, request: _Request) -> NodeAnswer:
        """The part of a node that is not linked, as answered by this node or another one on its behalf."""
        request = (*request[:4], node.guid)
        try:
            channels, offset, streams, _ = await self._work(request)
            here = msgspec.convert(channels, list[ChannelInfo])
            copies = msgspec.convert(streams, list[StreamInfo])
            return NodeAnswer(node.guid, _name_of(node), tuple(here), offset, streams=tuple(copies))
        except BusError as error:
            if error.code != Code.NO_STREAM:
                return NodeAnswer(node.guid, _name_of(node), code=error.code or Code.STORE_FAILED, error=error.reason)
        links = list(self._links.items())
        for answer in await asyncio.gather(*(self._ask(conn, other, request) for conn, other in links)):
            if not answer.error or answer.code not in {Code.OK, Code.NO_STREAM}:
                return answer._replace(guid=node.guid, node=_name_of(node))
        return NodeAnswer(node.guid, _name_of(node), error="the node is not linked")

    async def _ask(self, conn: int, node: Node, request: _Request) -> NodeAnswer:
        self._last += 1
        number = self._last
        future = self._hub.loop.create_future()
        self._waiting[number] = conn, future
        self._hub.engine.node(conn, SURVEY, number, _encode(request))
        self._hub.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await future
        except TimeoutError:
            return NodeAnswer(node.guid, _name_of(node), error=f"no answer within {_PATIENCE:g} s")
        finally:
            self._waiting.pop(number, None)
        if answer is None:
            return NodeAnswer(node.guid, _name_of(node), error="the link to the node has ended")
        code, text, channels, offset, streams, states = answer
        why = text if code != Code.OK else ""
        return NodeAnswer(node.guid, _name_of(node), tuple(channels), offset, code, why, tuple(streams), tuple(states))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        for link, future in list(self._waiting.values()):
            if link == conn and not future.done():
                future.set_result(None)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        try:
            if kind == SURVEYED:
                link, future = self._waiting.get(number, (conn, None))
                if link != conn or number > self._last:
                    raise Stranger("answer without a request")
                if future is not None and not future.done():  # otherwise the answer is late
                    future.set_result(_answers.decode(body))
                return
            request = _requests.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise error if isinstance(error, Stranger) else Stranger(f"invalid survey: {error}") from error
        what, stream, channel, _, _ = request
        named = is_name(stream) or (what == _STREAMS and not stream)
        if not named or not (is_name(channel) if channel is not None else what not in _ONE):
            raise Stranger("survey with an invalid stream or channel name")
        if sum(link == conn for link in self._tasks.values()) >= _MOST:
            raise Stranger(f"more than {_MOST} surveys at once")
        self._start(conn, number, self._work(request))

    # Requests of other nodes.

    def _start(self, conn: int, number: int, work: Coroutine[Any, Any, _Result]) -> None:
        task = self._hub.loop.create_task(self._answer(conn, self._links[conn], number, work), name="busway survey")
        self._tasks[task] = conn
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _answer(self, conn: int, node: Node, number: int, work: Coroutine[Any, Any, _Result]) -> None:
        try:
            channels, offset, streams, states = await work
            answer = _encode((int(Code.OK), "", channels, offset, streams, states))
            if len(answer) > node.frame:
                content = f"{len(channels)} channels" if channels else f"{len(streams)} streams"
                raise LimitExceeded(f"{content} do not fit into one answer")  # noqa: TRY301 - reported like others
        except BusError as error:
            answer = _encode((int(error.code or Code.STORE_FAILED), error.reason, (), 0, (), ()))
        except msgspec.MsgspecError as error:
            answer = _encode((int(Code.INVALID_SETTING), str(error), (), 0, (), ()))
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, None, "a survey")
            return
        if self._links.get(conn) is node:
            self._hub.engine.node(conn, SURVEYED, number, answer)
            self._hub.flush()

    async def _work(self, request: _Request) -> _Result:
        what, stream, channel, start, guid = request
        if what == _STREAMS:
            return [], 0, self._stream_figures(stream, guid), []
        if what in {_DEAD, _REDRIVE}:
            return [], 0, [], await self._letters(what, stream, channel, start, guid)
        channels = self._hub.channels
        if guid in {"", self._hub.guid}:
            found = channels.found(stream, channel)
        else:
            if (why := self._why(guid, stream)) is not None:
                raise StoreFailed(why)
            found, start = channels.ownership.found(guid, stream, channel), _in_replica(start)
            if what == _SEEK and not self._hub.peers.channels.owns(guid):
                raise StoreFailed("this node may not own the channel any more; try again in a few seconds")
        if what == _LIST:
            return [own_figures(driver, self._hub.channels.consumers) for driver in found], 0, [], []
        return [], await channels.seek(found[0], start), [], []

    async def _letters(
        self, what: str, stream: str, channel: str | None, start: tuple[str, Any], guid: str
    ) -> list[int]:
        """Look up or redrive dead letters. Only the node that stores the messages of the channel can."""
        if guid not in {"", self._hub.guid}:
            raise Rejected(
                f"can't redrive dead letters of stream {stream!r} here: node {guid} stores their messages",
                code=Code.NO_STREAM,
            )
        driver, letters = self._hub.channels.get(stream, channel or ""), letters_of(start[1])
        return await (
            look(driver, letters)
            if what == _DEAD
            else redrive(self._hub.runtime, self._hub.peers.channels, driver, letters)
        )

    def _stream_figures(self, name: str, guid: str) -> list[dict[str, Any]]:
        """Figures of this node's streams, or of its replicas of another node's."""
        if guid in {"", self._hub.guid}:
            guid, found = self._hub.guid, self._hub.streams.by_name
        else:
            found = {stream: copy for (owner, stream), copy in self._copies().items() if owner == guid}
        chosen = [stream for key, stream in found.items() if name in {"", key}]
        if not chosen and (name or guid != self._hub.guid):
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


def _forgotten(guid: str, members: "Membership") -> Node:
    return Node(guid, 1, members.me.cluster)


def _name_of(node: Node) -> str:
    return node.name or node.guid[:8]
