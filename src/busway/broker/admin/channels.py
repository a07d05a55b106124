"""The broker's services about channels, on topics below `$bus/channel`: make, change, move, list and remove them.

Questions and answers are JSON; rules and other bytes are base64 in them. Consuming is by frames, see `delivering`.
"""

import base64
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import msgspec

from busway._core import Message
from busway.broker.admin.streams import Service
from busway.broker.admin.survey import NodeAnswer, own_figures, summed
from busway.broker.channels.dead_letters.redrive import Letters, look, redrive as send_back
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import OneMessage, check_channel
from busway.errors import Code, OutOfRange, Rejected, StoreFailed, from_code

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of all of them; what a service doesn't need it ignores."""

    stream: str
    channel: str | None = None
    start: tuple[str, Any] = ("first", None)
    settings: dict[str, Any] = {}


class LettersQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/channel/dead` and `$bus/channel/redrive`."""

    stream: str
    channel: str
    letters: Letters
    """Offset and time of the message of each, and the epoch in which it died: `dead_offset`, `dead_epoch`, and the letter's own time."""
    broker: str = ""
    """The guid of the node whose part of the stream the messages are in, `dead_part`; empty: the one that is asked."""


async def create(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/create`: a channel with these settings; one that is there gets them."""
    question = _question(message)
    name = check_channel(question.channel)
    driver = await hub.channels.declare(question.stream, name, _settings(question), question.start)
    await _everywhere(hub, driver)
    return await _whole(hub, driver)


async def update(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/update`: other settings; those that aren't named stay."""
    question = _question(message)
    driver = _found(hub, question)
    await hub.channels.configure(driver, _settings(question))
    await _everywhere(hub, driver)
    return await _whole(hub, driver)


async def seek(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/seek`: go to another place, for all consumers: in all parts, or in the one that the place is in."""
    question = _question(message)
    driver = _found(hub, question)
    guid = _owner(hub, question.start)
    moved: dict[str, int] = {}
    if guid in {None, hub.guid}:
        moved[hub.guid] = await hub.channels.seek(driver, question.start)
    if guid == hub.guid:
        return {"offset": moved[guid], "parts": moved}
    others = await hub.peers.channels.seek(question.stream, driver.name, question.start, guid)
    moved |= {one.guid: one.offset for one in others if not one.error}
    if guid is not None and guid not in moved:
        _raise_for(question.start, guid, others)
    if failed := [f"{one.node} ({one.error})" for one in others if one.error]:
        went = ", ".join([hub.name or hub.guid[:8], *(one.node for one in others if not one.error)])
        reason = f"the channel {driver.name!r} has moved at {went}, but not at {', '.join(failed)}: seek again later"
        raise StoreFailed(reason)
    return {"offset": moved[guid or hub.guid], "parts": moved}


def _owner(hub: "Hub", start: tuple[str, Any]) -> str | None:
    """Whose part a place is in; None: it is a place in all."""
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
    """The one part that was to be moved was not."""
    if not others:
        raise OutOfRange(f"{start[0]}: the broker {guid}, whose place that is, is not known here")
    one = others[0]
    if one.code != Code.OK:
        raise from_code(one.code, f"{one.node}: {one.error}")
    raise StoreFailed(f"{start[0]}: {one.node}, whose place that is, can't be reached now: {one.error}")


async def dead(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/dead`: what became of dead letters of a channel."""
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
        states = await (look(driver, letters) if what == "dead" else send_back(hub, driver, letters))
        return {"states": states}
    answers = await hub.peers.channels.dead_letters(what, question.stream, name, question.letters, guid)
    if not answers:
        raise OutOfRange(f"letters: the broker {guid}, whose channel that is, is not known here")
    answer = answers[0]
    if answer.code != Code.OK:
        raise from_code(answer.code, f"{answer.node}: {answer.error}")
    if answer.error:
        raise StoreFailed(f"letters: {answer.node}, whose channel that is, can't be reached now: {answer.error}")
    return {"states": answer.states}


async def remove(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/remove`: the channel as it was."""
    driver = _found(hub, _question(message))
    was = await _whole(hub, driver)
    await hub.channels.remove(driver)
    await _everywhere(hub, driver)
    return was


async def _everywhere(hub: "Hub", driver: ChannelDriver) -> None:
    """Wait for the other nodes, so that their consumers find it as it is."""
    await hub.peers.channels.agreed(f"{driver.stream.name}/{driver.name}")


async def listed(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/list`: settings and figures of one channel, or of all of a stream."""
    question = _question(message)
    if question.channel is not None:
        return {"channels": [await _whole(hub, _found(hub, question))]}
    return {"channels": await _wholes(hub, question.stream, None)}


def _question(message: Message) -> Question:
    return msgspec.json.decode(message.payload, type=Question)


def _found(hub: "Hub", question: Question) -> ChannelDriver:
    return hub.channels.get(question.stream, check_channel(question.channel))


async def _whole(hub: "Hub", driver: ChannelDriver) -> dict[str, Any]:
    """Settings and figures of one channel, and what each node has of it."""
    name = driver.name
    return next(one for one in await _wholes(hub, driver.stream.name, name) if one["name"] == name)


async def _wholes(hub: "Hub", stream: str, channel: str | None) -> list[dict[str, Any]]:
    """The same of all channels of a stream, without what each node has."""
    found = hub.channels.found(stream, channel)
    here = [own_figures(hub, one) for one in found]
    if not hub.peers.members.clustered:
        return here
    return summed(hub, here, await hub.peers.channels.survey(stream, channel), parts=channel is not None)


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
