"""The broker's channel services on topics below `$bus/channel`: create, update, seek, list, remove and redrive.

`admin.services` calls them. Questions and answers are JSON, with rules and other bytes in base64. Consumers use frames
instead, see `channels.manager`.
"""

import base64
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import msgspec

from busway._core import Message
from busway.broker.admin.paging import MOST, PageQuestion
from busway.broker.admin.streams import Service
from busway.broker.admin.survey import NodeAnswer, own_figures, summed
from busway.broker.channels.dead_letters.redrive import Letters, look, redrive as send_back
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import OneMessage, check_channel
from busway.errors import Code, OutOfRange, Rejected, StoreFailed, from_code

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on all other channel services. Each ignores the entries that it does not need."""

    stream: str
    channel: str | None = None
    start: tuple[str, Any] = ("first", None)
    settings: dict[str, Any] = {}


class ListQuestion(PageQuestion, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a request on `$bus/channel/list`: one channel, a page or all, of one stream or of all."""

    stream: str | None = None
    channel: str | None = None
    most: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = MOST


class LettersQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/channel/dead` and `$bus/channel/redrive`."""

    stream: str
    channel: str
    letters: Letters
    """Of each letter: the fields `dead_offset` and `dead_epoch`, and the time of the letter."""
    broker: str = ""
    """The field `dead_part`: the guid of the node that has stored the messages. Empty: this node."""


async def create(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/create`: create a channel with these settings, or apply them to an existing one."""
    question = _question(message)
    name = check_channel(question.channel)
    driver = await hub.channels.declare(question.stream, name, _settings(question), question.start)
    await _agreed(hub, driver)
    return await _whole(hub, driver)


async def update(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/update`: change some settings of a channel."""
    question = _question(message)
    driver = _found(hub, question)
    await hub.channels.configure(driver, _settings(question))
    await _agreed(hub, driver)
    return await _whole(hub, driver)


async def seek(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/seek`: move a channel to a position, in all parts or in the part that has the position."""
    question = _question(message)
    driver = _found(hub, question)
    guid = _owner(hub, question.start)
    moved: dict[str, int] = {}
    if guid in {None, hub.guid}:
        moved[hub.guid] = await hub.channels.seek(driver, question.start)
    if guid == hub.guid:
        return {"offset": moved[guid], "parts": moved}
    others = await hub.peers.channels.seek(question.stream, driver.name, question.start, guid)
    moved |= {answer.guid: answer.offset for answer in others if not answer.error}
    if guid is not None and guid not in moved:
        _raise_for(question.start, guid, others)
    if failed := [f"{answer.node} ({answer.error})" for answer in others if answer.error]:
        done = ", ".join([hub.name or hub.guid[:8], *(answer.node for answer in others if not answer.error)])
        reason = f"the channel {driver.name!r} has moved at {done}, but not at {', '.join(failed)}: seek again later"
        raise StoreFailed(reason)
    return {"offset": moved[guid or hub.guid], "parts": moved}


def _owner(hub: "Hub", start: tuple[str, Any]) -> str | None:
    """The guid of the node that owns a position; None: all parts have one."""
    kind, value = start
    if kind == "offset":
        return hub.guid
    try:
        if kind == "position":
            return msgspec.convert(value, tuple[str, int])[0]
        if kind == "message":
            return msgspec.convert(value, OneMessage).broker or hub.guid
    except msgspec.MsgspecError as error:
        raise Rejected(f"{kind}: {error}", code=Code.INVALID_SETTING) from error
    return None


def _raise_for(start: tuple[str, Any], guid: str, others: list[NodeAnswer]) -> NoReturn:
    """Raise because the part that owns the position was not moved."""
    if not others:
        raise OutOfRange(f"{start[0]}: the broker {guid}, which owns that position, is not known here")
    answer = others[0]
    if answer.code != Code.OK:
        raise from_code(answer.code, f"{answer.node}: {answer.error}")
    raise StoreFailed(f"{start[0]}: {answer.node}, which owns that position, can't be reached now: {answer.error}")


async def dead(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/dead`: the status of dead letters of a channel."""
    return await _letters(hub, message, "dead")


async def redrive(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/redrive`: send dead letters back to their channel."""
    return await _letters(hub, message, "redrive")


async def _letters(hub: "Hub", message: Message, what: Literal["dead", "redrive"]) -> dict[str, Any]:
    question = msgspec.json.decode(message.payload, type=LettersQuestion)
    name, guid = check_channel(question.channel), question.broker or hub.guid
    if guid == hub.guid:
        driver = hub.channels.get(question.stream, name)
        letters = list(question.letters)
        states = await (look(driver, letters) if what == "dead" else send_back(hub.runtime, driver, letters))
        return {"states": states}
    answers = await hub.peers.channels.dead_letters(what, question.stream, name, question.letters, guid)
    if not answers:
        raise OutOfRange(f"letters: the broker {guid}, which has stored the messages, is not known here")
    answer = answers[0]
    if answer.code != Code.OK:
        raise from_code(answer.code, f"{answer.node}: {answer.error}")
    if answer.error:
        reason = f"letters: {answer.node}, which has stored the messages, can't be reached now: {answer.error}"
        raise StoreFailed(reason)
    return {"states": answer.states}


async def remove(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/remove`: remove a channel. The answer has its last settings and figures."""
    driver = _found(hub, _question(message))
    last = await _whole(hub, driver)
    await hub.channels.remove(driver)
    await _agreed(hub, driver)
    return last


async def _agreed(hub: "Hub", driver: ChannelDriver) -> None:
    """Wait until the other nodes have the same definition of a channel."""
    await hub.peers.channels.agreed(f"{driver.stream.name}/{driver.name}")


async def listed(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/list`: the settings and figures of one channel, or of a page or all channels of one or all streams."""
    question = msgspec.json.decode(message.payload, type=ListQuestion) if message.payload else ListQuestion()
    if question.channel is not None:
        driver = hub.channels.get(question.stream or "", check_channel(question.channel))
        return {"channels": [await _whole(hub, driver) | {"clients": _consumers(hub, driver)}], "total": 1}
    streams = list(hub.streams.by_name) if question.stream is None else [question.stream]
    found = [whole for stream in streams for whole in await _wholes(hub, stream, None)]
    found = [whole for whole in found if question.has(whole["name"], whole["stream"])]
    page = found if question.whole else question.page(found, _place, dict.__getitem__)
    return {"channels": page, "total": len(found)}


def _consumers(hub: "Hub", driver: ChannelDriver) -> list[dict[str, Any]]:
    """The consumers that are connected to this node, and the nodes whose clients consume this part."""
    found = []
    for consumer in driver.machine.consumers:
        if (session := hub.sessions.get(consumer.who[0])) is not None:
            figures = {"client": session.client, "name": consumer.name or session.name, "node": session.node}
            found.append(figures | {"window": consumer.window, "in_flight": consumer.in_flight})
    return found


def _place(whole: dict[str, Any]) -> tuple[str, str]:
    return whole["stream"], whole["name"]


def _question(message: Message) -> Question:
    return msgspec.json.decode(message.payload, type=Question)


def _found(hub: "Hub", question: Question) -> ChannelDriver:
    return hub.channels.get(question.stream, check_channel(question.channel))


async def _whole(hub: "Hub", driver: ChannelDriver) -> dict[str, Any]:
    """The settings and figures of one channel, with its part at each node."""
    name = driver.name
    return next(whole for whole in await _wholes(hub, driver.stream.name, name) if whole["name"] == name)


async def _wholes(hub: "Hub", stream: str, channel: str | None) -> list[dict[str, Any]]:
    """The settings and figures of one channel with its parts, or of all channels of a stream without parts."""
    here = [own_figures(driver, hub.channels.consumers) for driver in hub.channels.found(stream, channel)]
    if not hub.peers.members.clustered:
        return here
    return summed(hub.runtime, here, await hub.peers.channels.survey(stream, channel), parts=channel is not None)


def _settings(question: Question) -> dict[str, Any]:
    settings = dict(question.settings)
    if isinstance(rules := settings.get("where"), str):
        try:
            settings["where"] = base64.b64decode(rules, validate=True)
        except ValueError as error:
            raise Rejected(f"where: {error}", code=Code.INVALID_SETTING) from error
    return settings


SERVICES: Final[dict[str, Service]] = {
    "$bus/channel/create": create,
    "$bus/channel/update": update,
    "$bus/channel/seek": seek,
    "$bus/channel/dead": dead,
    "$bus/channel/redrive": redrive,
    "$bus/channel/remove": remove,
    "$bus/channel/list": listed,
}
