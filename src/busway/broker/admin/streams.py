"""The broker's stream services on topics below `$bus`: create, update, remove, list, search and read streams.

Questions and answers are JSON; only the answer of `$bus/read` is a block of the log. `admin.services` calls each in its
own task, because a store may take time.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import Message, Selection, select_records
from busway.broker.admin.paging import MOST, PageQuestion
from busway.broker.admin.survey import with_parts
from busway.broker.streams import set_aside
from busway.broker.streams.stream import Stream
from busway.common import environment
from busway.errors import BusError, Code, Rejected
from busway.settings import KiB, MiB
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.peers import StreamPeers

Service: TypeAlias = Callable[["Hub", Message], Awaitable[bytes | dict[str, Any]]]
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]

_HEAD: Final = struct.Struct("<QQ")
_END: Final = (1 << 64) - 1
_BLOCK: Final = MiB
_TOPICS: Final = 10_000
_NUMBERS: Final = 1024
_BROKERS: Final = 64


class ListQuestion(PageQuestion, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a request on `$bus/stream/list`: one stream, a page of them or all.

    With `parts` the answer has the part of each stream at each node, and without `channels` it lacks the channels.
    """

    name: str | None = None
    parts: bool = False
    channels: bool = True
    most: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = MOST


class NameQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/remove`."""

    name: str


class TopicsQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/topics`: topics after `after` in alphabetical order, as many as fit."""

    name: str
    pattern: str = "**"
    after: str | None = None


class FindQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/find`: a time or an age (nanoseconds), or a sequence of a topic."""

    name: str
    time: int | None = None
    ago: _Natural | None = None
    topic: str | None = None
    sequence: _Natural = 0
    broker: _Guid | None = None
    """The node of the cluster whose part is searched; only for a time or an age."""


class ReadQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/read`: matching messages at offsets from `from` to before `to`.

    The rules are as in a SUBSCRIBE, in base64. Expired messages are left out, unless `expired` is true.
    """

    stream: str
    begin: Annotated[int, msgspec.Meta(ge=0, le=_END >> 1)] = msgspec.field(default=0, name="from")
    to: _Natural | None = None
    most: Annotated[int, msgspec.Meta(ge=1)] = _BLOCK
    pattern: str = "**"
    rules: bytes = b""
    expired: bool = False
    broker: _Guid | None = None
    """The node of the cluster whose part is read."""


class RecoverQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/recover`: a folder that `$bus/stream/aside` has, and an offset."""

    folder: str
    begin: _Natural = msgspec.field(default=0, name="from")


class StoredQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stored`: the requester's own messages, as runs of number and count."""

    brokers: Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=_BROKERS)]
    numbers: Annotated[tuple[tuple[_Natural, _Natural], ...], msgspec.Meta(max_length=_NUMBERS)]
    within: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0
    """Seconds that other nodes have to answer."""


async def create(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/create`: create a stream. Without a `store` the broker chooses it."""
    name, given = _settings(message)
    if given.get("store") is None:
        given["store"] = hub.streams.best
    config = _checked(lambda: StreamConfig.make(name, **given))
    if name not in hub.streams.by_name:
        hub.streams.check_mirror(config)
    stream = await hub.streams.create(config)
    await _agreed(hub, name)
    return shown(hub, stream)


async def update(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/update`: change some settings of a stream."""
    name, given = _settings(message)
    config = hub.streams.get(name).config
    if given.get("safety", config.safety) != config.safety:
        hub.streams.check_mirror(_checked(lambda: config.changed(**given)))
    stream = await hub.streams.update(_checked(lambda: config.changed(**given)))
    await _agreed(hub, name)
    return shown(hub, stream)


async def remove(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/remove`: remove a stream. The answer has its last settings and figures."""
    name = msgspec.json.decode(message.payload, type=NameQuestion).name
    last = shown(hub, hub.streams.get(name))
    await hub.streams.remove(name)
    await _agreed(hub, name)
    return last


async def _agreed(hub: "Hub", key: str) -> None:
    """Wait until the other nodes have the same definition of a stream."""
    await hub.peers.streams.agreed(key)


async def listed(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/list`: the settings and figures of one stream, or of all."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=ListQuestion) if payload else ListQuestion()
    name = question.name
    chosen = list(hub.streams.by_name.values()) if name is None else [hub.streams.get(name)]
    found = [stream for stream in chosen if question.has(stream.config.name, *stream.config.topics)]
    page = found if question.whole else question.page(found, _name, _figure)
    here = [shown(hub, stream, channels=question.channels) for stream in page]
    if question.parts:
        here = with_parts(hub.runtime, here, await hub.peers.streams.survey(name))
    return {"streams": here, "total": len(found)}


def _name(stream: Stream) -> str:
    return stream.config.name


def _figure(stream: Stream, figure: str) -> Any:
    return stream.figures(channels=False)[figure]


async def topics(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/topics`: the first and last sequence and the number of messages of each topic."""
    question = msgspec.json.decode(message.payload, type=TopicsQuestion)
    selection = Selection(question.pattern)
    found = await hub.streams.get(question.name).topics()
    return await asyncio.to_thread(_page, found, question, selection, hub.settings.frame - KiB)


def _page(
    found: list[tuple[str, int, int, int]], question: TopicsQuestion, selection: Selection, room: int
) -> dict[str, Any]:
    some: list[tuple[str, int, int, int]] = []
    for row in sorted(found):
        if (question.after is not None and row[0] <= question.after) or not selection.covers(row[0]):
            continue
        room -= 6 * len(row[0].encode()) + 70  # the most that JSON needs
        if len(some) == _TOPICS or (room < 0 and some):
            return {"topics": some, "more": True}
        some.append(row)
    return {"topics": some, "more": False}


async def find(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/find`: the offset of a message; None if there is no such message of the topic."""
    question = msgspec.json.decode(message.payload, type=FindQuestion)
    if sum(value is not None for value in (question.time, question.ago, question.topic)) != 1:
        raise Rejected("give exactly one of time, ago and topic", code=Code.INVALID_SETTING)
    peers = _peers_for(hub, question.broker)
    if peers is not None and question.topic is not None:
        text = "a sequence can be searched only in the part of the broker that gets the request; leave broker out"
        raise Rejected(text, code=Code.INVALID_SETTING)
    if peers is None:
        stream = hub.streams.get(question.name)
    if question.topic is not None:
        return {"offset": await stream.find(question.topic, question.sequence)}
    moment = environment.time_ns() - question.ago if question.ago is not None else question.time or 0
    moment = min(max(moment, -_END >> 1), _END >> 1)
    if peers is not None:
        return {"offset": await peers.locate(question.broker or "", question.name, max(moment, 0))}
    return {"offset": await stream.find_time(moment)}


def _peers_for(hub: "Hub", broker: str | None) -> "StreamPeers | None":
    """The interface to the part of another node; None: the request is for this broker's own part."""
    if broker in {None, hub.guid}:
        return None
    if not hub.peers.members.clustered:
        raise Rejected(f"there is no node {broker}: this broker is in no cluster", code=Code.NO_STREAM)
    return hub.peers.streams


async def read(hub: "Hub", message: Message) -> bytes:
    """`$bus/read`: two numbers and a block of whole records, which may be empty.

    The first number is `from` plus the number of messages that are lost. The second is the offset to read next.
    """
    question = msgspec.json.decode(message.payload, type=ReadQuestion)
    selection = Selection(question.pattern, question.rules)
    if (peers := _peers_for(hub, question.broker)) is not None:
        return await _read_remote(hub, peers, question, selection)
    stream = hub.streams.get(question.stream)
    end = stream.safe if question.to is None else min(question.to, stream.safe)
    begin = max(question.begin, min(stream.first, end))
    lost = begin - question.begin
    if begin >= end:
        return _HEAD.pack(question.begin + lost, begin)
    everything = question.pattern == "**" and not question.rules
    try:
        start = begin if everything else min(stream.skip(begin, selection), end)
        if start >= end:
            return _HEAD.pack(question.begin + lost, end)
        most = min(question.most, _BLOCK, max(hub.settings.frame - KiB, 1))
        first, behind, block = await stream.fetch(start, most)
    except BusError:
        if hub.streams.by_name.get(question.stream) is not stream:
            hub.streams.get(question.stream)  # raises if the stream was removed
        raise
    lost += min(first, end) - start
    if not everything or behind > end:
        now = 0 if question.expired else environment.time_ns()
        block = select_records(block, None if everything else selection, start, end, now)
    return _HEAD.pack(question.begin + lost, min(max(behind, start), end)) + block


async def _read_remote(hub: "Hub", peers: "StreamPeers", question: ReadQuestion, selection: Selection) -> bytes:
    """The answer of read() for the part of another node."""
    if question.expired:
        text = "expired messages can be read only from the part of the broker that gets the request; leave broker out"
        raise Rejected(text, code=Code.INVALID_SETTING)
    end = _END >> 1 if question.to is None else min(question.to, _END >> 1)
    if question.begin >= end:
        return _HEAD.pack(question.begin, question.begin)
    most = min(question.most, _BLOCK, max(hub.settings.frame - KiB, 1))
    where = question.broker or "", question.stream
    gone, first, behind, records, _ = await peers.read(*where, question.begin, most, question.pattern, question.rules)
    lost = max(min(first, end) - max(gone, question.begin), 0)
    block = select_records(records, selection, question.begin, end, environment.time_ns())
    return _HEAD.pack(question.begin + lost, min(max(behind, question.begin), end)) + block


async def stored(hub: "Hub", message: Message, session: int) -> dict[str, Any]:
    """`$bus/stored`: the positions at which other brokers have stored messages of the requester.

    `unknown` lists brokers about which no node could answer, and `unsure` those about which only a mirror could.
    """
    question = msgspec.json.decode(message.payload, type=StoredQuestion)
    count = sum(many for _, many in question.numbers)
    if count > _NUMBERS:
        text = f"{count} numbers, the limit is {_NUMBERS}; send several requests"
        raise Rejected(text, code=Code.INVALID_SETTING)
    brokers = [guid for guid in question.brokers if guid != hub.guid]
    known, sure, runs = set[str](), set[str](), list[Any]()
    if hub.peers.members.clustered and brokers:
        known, sure, runs = await hub.peers.streams.positions(session, brokers, question.numbers, question.within)
    unknown = [guid for guid in brokers if guid not in known]
    unsure = [guid for guid in brokers if guid in known - sure]
    if unknown or unsure:
        found = {number + more for _, _, number, many, _, _ in runs for more in range(many)}
        hub.runtime.doubtful += max(count - len(found), 0)
    return {"stored": runs, "unknown": unknown, "unsure": unsure}


def shown(hub: "Hub", stream: Stream, *, channels: bool = True) -> dict[str, Any]:
    """The figures of a stream for clients."""
    return stream.figures(channels=channels) | {"broker": hub.guid}


def _settings(message: Message) -> tuple[str, dict[str, Any]]:
    given = msgspec.json.decode(message.payload, type=dict[str, Any])
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise Rejected(f"the name of a stream must be text, not {name!r}", code=Code.INVALID_SETTING)
    return name, given


def _checked(make: Callable[[], StreamConfig]) -> StreamConfig:
    try:
        return make()
    except BusError:  # an invalid topic
        raise
    except (ValueError, TypeError) as error:
        raise Rejected(str(error), code=Code.INVALID_SETTING) from error


async def aside(hub: "Hub", message: Message) -> dict[str, Any]:  # noqa: ARG001 - the request has no payload
    """`$bus/stream/aside`: the records that are set aside in the data folder."""
    return {"aside": await asyncio.to_thread(set_aside.listed, hub.folder)}


async def recover(hub: "Hub", message: Message) -> bytes:
    """`$bus/stream/recover`: the offset to read next, the end, and a block of records that were set aside."""
    question = msgspec.json.decode(message.payload, type=RecoverQuestion)
    most = max(min(_BLOCK, hub.settings.frame - KiB), 1)
    following, end, block = await asyncio.to_thread(set_aside.fetch, hub.folder, question.folder, question.begin, most)
    return _HEAD.pack(following, end) + block


SERVICES: Final[dict[str, Service]] = {
    "$bus/stream/create": create,
    "$bus/stream/update": update,
    "$bus/stream/remove": remove,
    "$bus/stream/list": listed,
    "$bus/stream/topics": topics,
    "$bus/stream/find": find,
    "$bus/stream/aside": aside,
    "$bus/stream/recover": recover,
    "$bus/read": read,
}
