"""The broker's services about channels, on topics below `$bus/channel`: make, change, move, list and remove them.

Questions and answers are JSON; rules and other bytes are base64 in them. Consuming is by frames, see `delivering`.
"""

import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import Message
from busway.broker.channel_frames import check_channel
from busway.broker.handing import Handing
from busway.broker.stream_services import Service
from busway.errors import Code, Rejected

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of all of them; what a service doesn't need it ignores."""

    stream: str
    channel: str | None = None
    start: tuple[str, Any] = ("first", None)
    settings: dict[str, Any] = {}


async def create(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/create`: a channel with these settings; one that is there gets them."""
    question = _question(message)
    name = check_channel(question.channel)
    return _shown(await hub.delivering.declare(question.stream, name, _settings(question), question.start))


async def update(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/update`: other settings; those that aren't named stay."""
    question = _question(message)
    handing = _found(hub, question)
    await hub.delivering.configure(handing, _settings(question))
    return _shown(handing)


async def seek(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/seek`: go to another place, for all consumers."""
    question = _question(message)
    handing = _found(hub, question)
    return {"offset": await hub.delivering.seek(handing, question.start)}


async def remove(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/remove`: the channel as it was."""
    handing = _found(hub, _question(message))
    was = _shown(handing)
    await hub.delivering.remove(handing)
    return was


async def listed(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/channel/list`: settings and figures of one channel, or of all of a stream."""
    question = _question(message)
    if question.channel is not None:
        return {"channels": [_shown(_found(hub, question))]}
    return {"channels": hub.delivering.figures(hub.streaming.get(question.stream).number)}


def _question(message: Message) -> Question:
    return msgspec.json.decode(message.payload, type=Question)


def _found(hub: "Hub", question: Question) -> Handing:
    return hub.delivering.get(question.stream, check_channel(question.channel))


def _shown(handing: Handing) -> dict[str, Any]:
    return handing.figures()


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
    "$bus/channel/remove": remove,
    "$bus/channel/list": listed,
}
