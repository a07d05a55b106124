"""Commands of the console: maps each request of a browser to a verb of its client on the bus. A driver.

`session.py` calls `run` with a JSON object `{"id", "cmd", ...}` and sends the result as `{"id", "status", "body"}`.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from busway.client.bus import Bus
from busway.client.field_text import parse_fields
from busway.dead_letters import DeadLetter, Redrive
from busway.gateway.console import browse
from busway.gateway.console.messages import LARGEST, letter_object, message_object
from busway.gateway.console.rights import Rights
from busway.gateway.console.tail import Send, Tails
from busway.gateway.json.statuses import NOT_FOUND, Refused

_LONGEST: Final = 60.0
"""Seconds that a request of the console may take."""
_LETTERS: Final = 500


class _Payload(msgspec.Struct, kw_only=True):
    """What has a payload: text, or other bytes in base64."""

    text: str = ""
    base64: str | None = None
    fields: tuple[str, ...] = ()

    def payload(self) -> bytes:
        if self.base64 is None:
            return self.text.encode()
        try:
            return base64.b64decode(self.base64, validate=True)
        except ValueError as error:
            raise ValueError(f"the payload is not base64: {error}") from error


class _Ask(msgspec.Struct, frozen=True):
    topic: str
    body: Any = None


class _Call(_Payload, kw_only=True):
    topic: str
    timeout: Annotated[float, msgspec.Meta(gt=0, le=_LONGEST)] = 10.0


class _Publish(_Payload, kw_only=True):
    topic: str
    kind: Literal["publish", "durable", "pin", "unpin", "push"] = "publish"
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    expires: Annotated[float, msgspec.Meta(gt=0)] | None = None


class _Tail(msgspec.Struct, frozen=True):
    pattern: str = "**"
    where: tuple[str, ...] = ()
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    stream: str
    offset: browse.Offset
    broker: str | None = None


class _Letters(msgspec.Struct, frozen=True):
    stream: str
    channel: str
    topic: str = "**"
    reason: str = ""
    redriven: bool = False
    most: Annotated[int, msgspec.Meta(ge=1, le=_LETTERS)] = 100
    ids: tuple[str, ...] | None = None
    """For a redrive: these letters. None: all that are selected."""


class Commands:
    """The commands of one console session."""

    def __init__(self, bus: Bus, rights: Rights, tails: Tails, send: Send) -> None:
        self._bus = bus
        self._rights = rights
        self._tails = tails
        self._send = send
        self._table: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "ask": self._ask,
            "call": self._call,
            "publish": self._publish,
            "tail": self._tail,
            "untail": self._untail,
            "page": self._page,
            "message": self._message,
            "replay": self._replay,
            "letters": self._letters,
            "redrive": self._redrive,
        }

    async def run(self, request: dict[str, Any]) -> Any:
        """The result of a request. Raises Refused, BusError, ValueError and TypeError."""
        cmd = request.get("cmd")
        if not isinstance(cmd, str) or (command := self._table.get(cmd)) is None:
            raise Refused(NOT_FOUND, f"the console has no command {cmd!r}")
        return await command(request.get("args") or {})

    async def _ask(self, args: Any) -> Any:
        """A request to a service of the broker, whose answer is JSON."""
        question = msgspec.convert(args, _Ask)
        self._rights.demand("request", question.topic)
        payload = b"" if question.body is None else msgspec.json.encode(question.body)
        reply = await self._bus.request(question.topic, payload, timeout=_LONGEST)
        return msgspec.Raw(reply.payload or b"null")

    async def _call(self, args: Any) -> Any:
        """A request to any service, whose answer is a message."""
        question = msgspec.convert(args, _Call)
        self._rights.demand("request", question.topic)
        fields = parse_fields(question.fields)
        reply = await self._bus.request(question.topic, question.payload(), fields=fields, timeout=question.timeout)
        return message_object(reply, LARGEST)

    async def _publish(self, args: Any) -> Any:
        question = msgspec.convert(args, _Publish)
        self._rights.demand("publish", question.topic)
        bus, topic, payload, fields = self._bus, question.topic, question.payload(), parse_fields(question.fields)
        match question.kind:
            case "pin":
                await bus.pin(topic, payload, fields=fields)
                return {}
            case "unpin":
                return {"removed": await bus.unpin(topic, fields=fields)}
            case "push":
                await bus.push(topic, payload, fields=fields)
                return {}
            case "durable":
                delay, expires = question.delay or None, question.expires
                stored = await bus.publish(topic, payload, fields=fields, durable=True, delay=delay, expires=expires)
                return {"stream": stored.stream, "offset": stored.offset, "broker": stored.broker}
            case _:
                return {"receivers": await bus.publish(topic, payload, fields=fields, confirm=True)}

    async def _tail(self, args: Any) -> Any:
        question = msgspec.convert(args, _Tail)
        self._rights.demand("subscribe", question.pattern)
        return {"tail": await self._tails.begin(question.pattern, browse.where_of(question.where, question.text))}

    async def _untail(self, args: Any) -> Any:
        await self._tails.end(msgspec.convert(args, int))
        return None

    async def _page(self, args: Any) -> Any:
        self._rights.demand("request", "$bus/read")
        return await browse.page(self._bus, msgspec.convert(args, browse.Page))

    async def _message(self, args: Any) -> Any:
        self._rights.demand("request", "$bus/read")
        question = msgspec.convert(args, _Message)
        return await browse.single(self._bus, question.stream, question.broker, question.offset)

    async def _replay(self, args: Any) -> Any:
        question = msgspec.convert(args, browse.Replay)
        self._rights.demand("request", "$bus/read")
        self._rights.demand("publish", question.topic or "**")
        return await browse.replay(self._bus, question, self._send)

    async def _letters(self, args: Any) -> Any:
        self._rights.demand("request", "$bus/channel/dead")
        question = msgspec.convert(args, _Letters)
        found = await self._bus.dead_letters(
            question.stream,
            question.channel,
            last=question.most,
            topic=question.topic,
            reason=question.reason or None,
            redriven=question.redriven,
        )
        found.sort(key=_failure, reverse=True)
        return {"letters": [letter_object(letter) for letter in found]}

    async def _redrive(self, args: Any) -> Any:
        self._rights.demand("request", "$bus/channel/redrive")
        question = msgspec.convert(args, _Letters)
        made: Redrive = await self._bus.redrive_channel(
            question.stream,
            question.channel,
            question.ids,
            topic=question.topic,
            reason=question.reason or None,
        )
        return {"redriven": made.redriven, "before": made.before, "gone": made.gone, "left": made.left}


def _failure(letter: DeadLetter) -> tuple[float, int]:
    """When a letter failed. Letters of the same moment are in the order of their offsets."""
    return letter.died.timestamp() if letter.died is not None else 0.0, letter.offset
