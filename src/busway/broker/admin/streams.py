"""The broker's services about streams, on topics below `$bus`: make, change, remove, list, look into and read them.

Questions and answers are JSON, but for `$bus/read`, whose answer is a block of the log. Answered by services.py, each in a
task of its own, since a store may take time.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway._core import Message, Selection, select_records
from busway.broker.admin.survey import with_parts
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


class ListQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/list`: one stream, or all; with what each node of the cluster has of it, if `parts`."""

    name: str | None = None
    parts: bool = False


class NameQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/remove`."""

    name: str


class TopicsQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/topics`: those behind one in the order of their names, as many as fit."""

    name: str
    pattern: str = "**"
    after: str | None = None


class FindQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stream/find`: a time or how long ago (nanoseconds), or a sequence of a topic."""

    name: str
    time: int | None = None
    ago: _Natural | None = None
    topic: str | None = None
    sequence: _Natural = 0
    broker: _Guid | None = None
    """Another node of the cluster, in whose part; for a time."""


class ReadQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/read`: offsets from `from` to before `to`, of what matches (rules as in a SUBSCRIBE, base64).

    Expired messages are left out, unless `expired` asks for them.
    """

    stream: str
    begin: Annotated[int, msgspec.Meta(ge=0, le=_END >> 1)] = msgspec.field(default=0, name="from")
    to: _Natural | None = None
    most: Annotated[int, msgspec.Meta(ge=1)] = _BLOCK
    pattern: str = "**"
    rules: bytes = b""
    expired: bool = False
    broker: _Guid | None = None
    """Another node of the cluster, whose part is meant."""


class StoredQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/stored`: numbers of the asking client's own messages, as runs of the first and how many."""

    brokers: Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=_BROKERS)]
    numbers: Annotated[tuple[tuple[_Natural, _Natural], ...], msgspec.Meta(max_length=_NUMBERS)]
    within: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0
    """Seconds that others have to answer."""


async def create(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/create`: a stream of these settings; where it is stored the broker may choose."""
    name, given = _settings(message)
    if given.get("store") is None:
        given["store"] = hub.streams.best
    config = _checked(lambda: StreamConfig.make(name, **given))
    if name not in hub.streams.by_name:
        hub.streams.check_mirror(config)
    stream = await hub.streams.create(config)
    await _everywhere(hub, name)
    return shown(hub, stream)


async def update(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/update`: other settings; those that aren't named stay."""
    name, given = _settings(message)
    config = hub.streams.get(name).config
    if given.get("safety", config.safety) != config.safety:
        hub.streams.check_mirror(_checked(lambda: config.changed(**given)))
    stream = await hub.streams.update(_checked(lambda: config.changed(**given)))
    await _everywhere(hub, name)
    return shown(hub, stream)


async def remove(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/remove`: the stream as it was."""
    name = msgspec.json.decode(message.payload, type=NameQuestion).name
    was = shown(hub, hub.streams.get(name))
    await hub.streams.remove(name)
    await _everywhere(hub, name)
    return was


async def _everywhere(hub: "Hub", key: str) -> None:
    """Wait for the other nodes: who publishes at one of them next means this stream."""
    await hub.peers.streams.agreed(key)


async def listed(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/list`: settings and figures."""
    payload = message.payload
    question = msgspec.json.decode(payload, type=ListQuestion) if payload else ListQuestion()
    name = question.name
    chosen = hub.streams.by_name.values() if name is None else [hub.streams.get(name)]
    here = [shown(hub, stream) for stream in chosen]
    if not question.parts:
        return {"streams": here}
    return {"streams": with_parts(hub, here, await hub.peers.streams.survey(name))}


async def topics(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/topics`: what a stream holds of each topic."""
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
        room -= 6 * len(row[0].encode()) + 70  # however JSON writes it
        if len(some) == _TOPICS or (room < 0 and some):
            return {"topics": some, "more": True}
        some.append(row)
    return {"topics": some, "more": False}


async def find(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/stream/find`: an offset; None if there is no such message of the topic."""
    question = msgspec.json.decode(message.payload, type=FindQuestion)
    if sum(one is not None for one in (question.time, question.ago, question.topic)) != 1:
        raise Rejected("give one of time, ago and topic", code=Code.INVALID_SETTING)
    far = _elsewhere(hub, question.broker)
    if far is not None and question.topic is not None:
        raise Rejected("a sequence is looked for in the broker's own part only", code=Code.INVALID_SETTING)
    if far is None:
        stream = hub.streams.get(question.name)
    if question.topic is not None:
        return {"offset": await stream.find(question.topic, question.sequence)}
    moment = environment.time_ns() - question.ago if question.ago is not None else question.time or 0
    moment = min(max(moment, -_END >> 1), _END >> 1)
    if far is not None:
        return {"offset": await far.locate(question.broker or "", question.name, max(moment, 0))}
    return {"offset": await stream.find_time(moment)}


def _elsewhere(hub: "Hub", broker: str | None) -> "StreamPeers | None":
    """Whom to ask for the part of another node; None: this broker's own is meant."""
    if broker in {None, hub.guid}:
        return None
    if not hub.peers.members.clustered:
        raise Rejected(f"there is no node {broker}: this broker is in no cluster", code=Code.NO_STREAM)
    return hub.peers.streams


async def read(hub: "Hub", message: Message) -> bytes:
    """`$bus/read`: two numbers and a block of whole records, which may have none.

    The first number is above `from` if messages are gone for good, by how many; the second is where to read on.
    """
    question = msgspec.json.decode(message.payload, type=ReadQuestion)
    selection = Selection(question.pattern, question.rules)
    if (far := _elsewhere(hub, question.broker)) is not None:
        return await _read_far(hub, far, question, selection)
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
            hub.streams.get(question.stream)  # says that it is gone
        raise
    lost += min(first, end) - start
    if not everything or behind > end:
        now = 0 if question.expired else environment.time_ns()
        block = select_records(block, None if everything else selection, start, end, now)
    return _HEAD.pack(question.begin + lost, min(max(behind, start), end)) + block


async def _read_far(hub: "Hub", far: "StreamPeers", question: ReadQuestion, selection: Selection) -> bytes:
    """The same of the part of another node."""
    if question.expired:
        raise Rejected("expired messages are read from the broker's own part only", code=Code.INVALID_SETTING)
    end = _END >> 1 if question.to is None else min(question.to, _END >> 1)
    if question.begin >= end:
        return _HEAD.pack(question.begin, question.begin)
    most = min(question.most, _BLOCK, max(hub.settings.frame - KiB, 1))
    where = question.broker or "", question.stream
    gone, first, behind, records, _ = await far.read(*where, question.begin, most, question.pattern, question.rules)
    lost = max(min(first, end) - max(gone, question.begin), 0)
    block = select_records(records, selection, question.begin, end, environment.time_ns())
    return _HEAD.pack(question.begin + lost, min(max(behind, question.begin), end)) + block


async def stored(hub: "Hub", message: Message, session: int) -> dict[str, Any]:
    """`$bus/stored`: where other brokers have stored messages of the client that asks, for which of them nobody could tell, and for which only a copy."""
    question = msgspec.json.decode(message.payload, type=StoredQuestion)
    count = sum(many for _, many in question.numbers)
    if count > _NUMBERS:
        raise Rejected(f"{count} numbers, the limit is {_NUMBERS}", code=Code.INVALID_SETTING)
    brokers = [guid for guid in question.brokers if guid != hub.guid]
    known, sure, runs = set[str](), set[str](), list[Any]()
    if hub.peers.members.clustered and brokers:
        known, sure, runs = await hub.peers.streams.positions(session, brokers, question.numbers, question.within)
    unknown = [guid for guid in brokers if guid not in known]
    unsure = [guid for guid in brokers if guid in known - sure]
    if unknown or unsure:
        found = {number + more for _, _, number, many, _, _ in runs for more in range(many)}
        hub.doubtful += max(count - len(found), 0)
    return {"stored": runs, "unknown": unknown, "unsure": unsure}


def shown(hub: "Hub", stream: Stream) -> dict[str, Any]:
    """A stream as a client gets it."""
    return stream.figures() | {"broker": hub.guid}


def _settings(message: Message) -> tuple[str, dict[str, Any]]:
    given = msgspec.json.decode(message.payload, type=dict[str, Any])
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise Rejected(f"a stream has a name that is a text, not {name!r}", code=Code.INVALID_SETTING)
    return name, given


def _checked(make: Callable[[], StreamConfig]) -> StreamConfig:
    try:
        return make()
    except BusError:  # of a topic
        raise
    except (ValueError, TypeError) as error:
        raise Rejected(str(error), code=Code.INVALID_SETTING) from error


SERVICES: Final[dict[str, Service]] = {
    "$bus/stream/create": create,
    "$bus/stream/update": update,
    "$bus/stream/remove": remove,
    "$bus/stream/list": listed,
    "$bus/stream/topics": topics,
    "$bus/stream/find": find,
    "$bus/read": read,
}
