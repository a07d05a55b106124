"""Permissions of the broker's own services: what the user of a request must be allowed, and what the answer may show.

`admin.services` asks before it calls a service. A service without an entry here is for administrators.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from busway._core import Grants, Message
from busway.authority.grants import NUMBERS, Verb
from busway.broker.access.permissions import demand
from busway.broker.streams.stream import Stream
from busway.errors import Code, Forbidden

if TYPE_CHECKING:
    from busway.broker.hub import Hub

Check: TypeAlias = Callable[["Hub", int, Message], None]
"""Raises Forbidden unless the user of a connection may send this request."""
Shows: TypeAlias = Callable[["Hub", Grants, Any], Any]
"""The part of an answer that a user may see."""

EVERYTHING: Final = "**"
_VISIBLE: Final = sum(1 << NUMBERS[verb] for verb in ("read", "store", "consume", "manage", "observe"))
"""Who may do one of these with some topic of a stream may know the stream."""


def check(hub: "Hub", conn: int, message: Message) -> None:
    """Raise Forbidden unless the user of a connection may send this request."""
    session = hub.sessions.get(conn)
    if session is None or session.grants is None:
        return
    _CHECKS.get(message.topic, _admin)(hub, conn, message)


def visible(hub: "Hub", conn: int, topic: str, answer: Any) -> Any:
    """The part of an answer that the user of a connection may see."""
    session = hub.sessions.get(conn)
    if session is None or session.grants is None or topic not in _SHOWN:
        return answer
    return _SHOWN[topic](hub, session.grants, answer)


def topics_of(stream: Stream) -> tuple[str, ...]:
    """The patterns whose messages a stream may hold."""
    return stream.config.topics or (EVERYTHING,)


def _admin(hub: "Hub", conn: int, message: Message) -> None:
    demand(hub.runtime, conn, "admin", message.topic)


def _observe(hub: "Hub", conn: int, message: Message) -> None:
    demand(hub.runtime, conn, "observe", message.topic)


def _open(hub: "Hub", conn: int, message: Message) -> None:
    """The answer has only what the user may see, or what is the user's own."""


class _Stream(msgspec.Struct, frozen=True):
    """What the questions about streams and channels have in common."""

    name: str = ""
    stream: str = ""
    channel: str | None = None
    topic: str | None = None
    topics: tuple[str, ...] | None = None
    pattern: str = EVERYTHING
    settings: dict[str, Any] = {}


def _question(message: Message) -> _Stream:
    try:
        return msgspec.json.decode(message.payload, type=_Stream)
    except msgspec.MsgspecError:
        return _Stream()  # the service reports what is wrong with it


def _known(hub: "Hub", conn: int, message: Message) -> None:
    """One stream that the user may know; lists of all have only such streams."""
    question = _question(message)
    found = hub.streams.by_name.get(question.stream or question.name)
    grants = hub.sessions[conn].grants
    if found is not None and grants is not None and not _touched(grants, topics_of(found)):
        text = hub.engine.forbid(conn, NUMBERS["observe"], topics_of(found)[0])
        raise Forbidden(text, code=Code.FORBIDDEN)


def _manage_stream(hub: "Hub", conn: int, message: Message) -> None:
    """All topics of the stream, and those that it gets."""
    question = _question(message)
    found = hub.streams.by_name.get(question.name)
    topics = question.topics or ((EVERYTHING,) if found is None else ())
    demand(hub.runtime, conn, "manage", *topics, *(() if found is None else topics_of(found)))


def _read(hub: "Hub", conn: int, message: Message) -> None:
    """The pattern of the question, or all topics of the stream."""
    question = _question(message)
    if question.topic is not None:
        demand(hub.runtime, conn, "read", question.topic)
        return
    name = question.stream or question.name
    found = hub.streams.by_name.get(name)
    wanted = (question.pattern,) if found is None or question.pattern != EVERYTHING else topics_of(found)
    demand(hub.runtime, conn, "read", *wanted)


def _on_channel(verb: Verb) -> Check:
    def checks(hub: "Hub", conn: int, message: Message) -> None:
        question = _question(message)
        if question.stream in hub.streams.by_name:
            hub.channels.consumers.demand(conn, verb, question.stream, question.channel, question.settings)
        else:
            demand(hub.runtime, conn, verb, EVERYTHING)

    return checks


def _streams(hub: "Hub", grants: Grants, answer: Any) -> Any:  # noqa: ARG001 - one signature for the table
    listed = [stream for stream in answer["streams"] if _touched(grants, _topics(stream))]
    return answer | {"streams": listed}


def _channels(hub: "Hub", grants: Grants, answer: Any) -> Any:
    def known(figures: dict[str, Any]) -> bool:
        stream = hub.streams.by_name.get(figures.get("stream", ""))
        return stream is None or _touched(grants, topics_of(stream))

    return answer | {"channels": [figures for figures in answer["channels"] if known(figures)]}


def _topics(stream: Any) -> tuple[str, ...]:
    topics = stream.get("topics") if isinstance(stream, dict) else getattr(stream, "topics", None)
    return tuple(topics or (EVERYTHING,))


def _touched(grants: Grants, topics: tuple[str, ...]) -> bool:
    return any(grants.touches(_VISIBLE, topic) for topic in topics)


_CHECKS: Final[dict[str, Check]] = {
    "$bus/info": _observe,
    "$bus/cluster": _observe,
    "$bus/connections": _observe,
    "$bus/rates": _observe,
    "$bus/services": _observe,
    "$bus/topic": _observe,
    "$bus/topics": _observe,
    "$bus/kept": _open,
    "$bus/stored": _open,
    "$bus/stream/list": _known,
    "$bus/channel/list": _known,
    "$bus/stream/create": _manage_stream,
    "$bus/stream/update": _manage_stream,
    "$bus/stream/remove": _manage_stream,
    "$bus/stream/topics": _read,
    "$bus/stream/find": _read,
    "$bus/read": _read,
    "$bus/channel/create": _on_channel("consume"),
    "$bus/channel/update": _on_channel("manage"),
    "$bus/channel/seek": _on_channel("manage"),
    "$bus/channel/remove": _on_channel("manage"),
    "$bus/channel/dead": _on_channel("consume"),
    "$bus/channel/redrive": _on_channel("manage"),
}
_SHOWN: Final[dict[str, Shows]] = {"$bus/stream/list": _streams, "$bus/channel/list": _channels}
