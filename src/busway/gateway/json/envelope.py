"""The two forms of a JSON message, flat and with `headers`, as one Request; and answers and messages in each of them. Values only.

An object with a member `headers` that is an object is of the second form, any other is flat. They call some things differently:
`sender` and `source`, `recver` and `target`, `topic` of a message and `tag`. In the bus a message has the fields `sender` and `tag`.
"""

from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from busway._core import Message
from busway.gateway.json import bodies, url_calls
from busway.gateway.json.statuses import BAD, Refused

FLAT: Final = 0
HEADERS: Final = 1

Ident: TypeAlias = str | int | float | None
"""What a client may call a request; it is given back as it came."""

UNSET: Final = msgspec.UNSET
BOUND: Final = "bound"
"""Field of a call by URL: the URL that its service has bound."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

_ABOUT: Final = frozenset({"mq", "ack", "apiKey", "signature", "sender", "source", "offset", "window"})
"""Keys of a `pub` that are not part of the message."""


class Malformed(Refused):
    """Something that is no request."""

    def __init__(self, text: str, form: int = FLAT, ident: Ident = None) -> None:
        super().__init__(BAD, text)
        self.form = form
        self.ident = ident


class Called(NamedTuple):
    """A call by the path of an HTTP request, as it came."""

    url: str
    """With its query."""
    verb: str
    parts: list[str]
    """Of the path."""
    mq: str | None
    """The queue that the query names."""
    body: Any
    kind: str
    """Content type of the body."""


class Request:
    """What somebody asks for, whatever form it came in."""

    __slots__ = (
        "body",
        "called",
        "cmd",
        "form",
        "head",
        "ident",
        "key",
        "more",
        "plain",
        "raw",
        "source",
        "status",
        "url",
        "verb",
        "whole",
    )

    def __init__(self, form: int, head: dict[str, Any], body: Any, raw: dict[str, Any]) -> None:
        self.form = form
        self.head = head
        """Everything but the body, the command and the id."""
        self.body = body
        self.raw = raw
        """As it came, for its signature."""
        self.source: bytes | str | None = None
        """The JSON that it came as."""
        self.key: Any = None
        """Whose it is, if the door has keys."""
        self.url: str | None = None
        self.verb: str | None = None
        """The HTTP method that a message of the second form may have."""
        self.status: Any = None
        self.plain = False
        """The answer over HTTP is the body alone, with control fields as headers of HTTP."""
        self.called: Called | None = None
        """What it was if it is a call by the path of an HTTP request."""
        self.more: list[Any] = []
        """Parameters that are not in the path of a call."""
        self.whole = False
        """Whether those are all."""
        ident = head.pop("id", None)
        if ident is not None and type(ident) not in {str, int, float}:
            raise Malformed("id must be a text or a number", form)
        self.ident: Ident = ident
        cmd = head.pop("cmd", None)
        if cmd is not None and type(cmd) is not str:
            raise Malformed("cmd must be a text", form, ident)
        self.cmd: str | None = cmd.lower() if cmd else None

    def text(self, key: str) -> str | None:
        """The text of a key; None if it is not there. A number counts as its digits, as some clients have it."""
        value = self.head.get(key)
        if value is None or type(value) is str:
            return value or None
        if type(value) is int:
            return str(value)
        raise Malformed(f"{key} must be a text", self.form, self.ident)

    def number(self, key: str) -> int | None:
        """The whole number of a key, which may be written as text."""
        value = self.head.get(key)
        if value is None or value == "":
            return None
        if type(value) is str:
            with suppress(ValueError):
                value = int(value)
        elif type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or abs(value) >= 2**63:
            raise Malformed(f"{key} must be a whole number", self.form, self.ident)
        return value

    def seconds(self, key: str) -> float | None:
        """The seconds of a key, which may be written as text."""
        value = self.head.get(key)
        if value is None:
            return None
        try:
            value = float(value)
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value < 1e9:
            raise Malformed(f"{key} must be a number of seconds", self.form, self.ident)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001, there is no other way to read it
        """Whether a key says true; it may be written as text."""
        value = self.head.get(key)
        if value is None:
            return default
        if type(value) is bool:
            return value
        if type(value) is str and value in {"true", "false"}:
            return bool(value == "true")
        raise Malformed(f"{key} must be true or false", self.form, self.ident)

    @property
    def is_call(self) -> bool:
        """Whether it asks a service: by a method, or by the URL of one."""
        if self.url is not None:
            return not self.at_root and self.url != ""
        return self.form == FLAT and "method" in self.head

    @property
    def at_root(self) -> bool:
        """Whether it is for the URL `/`, which is a call only if a service has bound that."""
        return self.url is not None and self.url.partition("?")[0] == "/"


def parse(data: bytes | str) -> Request:
    """The request that a frame or a body is. Raises Malformed."""
    try:
        raw = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Malformed("json format required") from None
    request = of(raw)
    request.source = data
    return request


def of(raw: Any, *, body: Any = UNSET) -> Request:
    """The request that a value is. Raises Malformed."""
    if type(raw) is not dict:
        raise Malformed("json format required")
    headers = raw.get("headers")
    if type(headers) is not dict:
        head = raw.copy()
        body = head.pop("body", body)
        request = Request(FLAT, head, body, raw)
        request.status = head.get("status")
        return request
    request = Request(HEADERS, headers.copy(), raw.get("body", body), raw)
    for key, name in (("url", "url"), ("method", "verb")):
        value = raw.get(key)
        if value is not None and type(value) is not str:
            raise Malformed(f"{key} must be a text", HEADERS, request.ident)
        setattr(request, name, value)
    request.status = raw.get("status", request.head.get("status"))
    return request


def answer(form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> bytes:
    """The reply to a request, in the form that it had."""
    if form == FLAT:
        return _encode({**(head or {}), "id": ident, "status": status, "body": body})
    return _encode({"headers": {**(head or {}), "id": ident}, "status": status, "body": body})


def encoded(value: Any) -> bytes:
    """The JSON of a value."""
    return _encode(value)


def stored(request: Request, ident: Ident, sender: str) -> tuple[bytes | str, dict[str, Any]]:
    """Payload and fields of the message that a `pub` is. Raises what payload_of() raises."""
    head, fields = request.head, {"id": ident, "sender": sender}
    if len(head) > 1:
        fields |= {key: value for key, value in head.items() if key not in _ABOUT}
        if request.form == FLAT and "topic" in fields:
            fields["tag"] = fields.pop("topic")
    if request.url is not None:
        fields["url"] = request.url
    if request.verb is not None:
        fields["verb"] = request.verb
    body = request.body
    if body is UNSET and "params" in fields and "method" in fields:
        fields[bodies.MARK] = bodies.PARAMS
        return bodies.payload_of(fields.pop("params"))[0], fields
    payload, mark = bodies.payload_of(body)
    if mark is not None:
        fields[bodies.MARK] = mark
    elif bodies.MARK in fields:
        del fields[bodies.MARK]
    return payload, fields


def delivery(form: int, mq: str, channel: str, message: Message, base: int, window: int | None = None) -> bytes:
    """A stored message as a subscriber gets it."""
    return _encode(shown(form, mq, channel, message, base, window))


def shown(form: int, mq: str, channel: str, message: Message, base: int, window: int | None = None) -> dict[str, Any]:
    """A stored message in one of the forms, as a value; `base` is the offset of the message that its queue calls 0."""
    offset = None if message.offset is None else message.offset - base
    fields = message.fields
    mark = fields.pop(bodies.MARK, None)
    body, coded = bodies.body_of(message.payload, mark)
    ident, sender = fields.pop("id", None), fields.pop("sender", None)
    if ident is None:
        ident = message.id
    if type(sender) is not str:
        sender = message.sender
    if coded:
        fields["encoding"] = bodies.BASE64
    if form == FLAT:
        return _flat(mq, channel, ident, sender, fields, body, mark, offset, window)
    return _headed(mq, channel, ident, sender, fields, body, offset, window)


def _flat(
    mq: str,
    channel: str,
    ident: Ident,
    sender: str,
    fields: dict[str, Any],
    body: Any,
    mark: object,
    offset: int | None,
    window: int | None,
) -> dict[str, Any]:
    made = {"mq": mq, "channel": channel, "sender": sender, "id": ident, "offset": offset}
    if window is not None:
        made["window"] = window
    if fields:
        if "tag" in fields:
            fields["topic"] = fields.pop("tag")
        url = fields.pop(BOUND, None)
        if "url" in fields and "method" not in fields:  # a call of the other form
            module, method, params = url_calls.called(str(fields["url"]), url, mq, body)
            fields |= {"module": module, "method": method, "params": params}
        made = fields | made
    if mark == bodies.PARAMS:
        made["params"] = body
    elif body is not UNSET:
        made["body"] = body
    return made


def _headed(
    mq: str,
    channel: str,
    ident: Ident,
    sender: str,
    fields: dict[str, Any],
    body: Any,
    offset: int | None,
    window: int | None,
) -> dict[str, Any]:
    url, verb, status = fields.pop("url", None), fields.pop("verb", None), fields.pop("status", None)
    fields.pop(BOUND, None)
    if url is None and "method" in fields:  # a call of the other form
        url = "/".join(("", *(str(fields[key]) for key in ("module", "method") if fields.get(key))))
    head = fields | {"mq": mq, "channel": channel, "source": sender, "id": ident, "offset": str(offset)}
    if window is not None:
        head["window"] = str(window)
    more = (("url", url), ("method", verb), ("status", status))
    made: dict[str, Any] = {"headers": head} | {key: value for key, value in more if value is not None}
    if body is not UNSET:
        made["body"] = body
    if url is not None:  # some services take nothing for a call that has not all of these
        made.setdefault("status", None)
        made.setdefault("body", None)
    return made
