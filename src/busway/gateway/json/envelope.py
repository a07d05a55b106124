"""Envelopes of the JSON protocol: reads requests of both forms as one `Request`, and writes answers and messages.

An object whose member `headers` is an object has the headers form; any other has the flat form. The forms use different
names: `sender` and `source`, `recver` and `target`, `topic` and `tag`. A message of the bus has the fields `sender` and
`tag`. Sessions and the HTTP parser call this module. Values only.
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
"""The id that a client gave a request; the answer repeats it."""

UNSET: Final = msgspec.UNSET
BOUND: Final = "bound"
"""Field of a call by URL that holds the URL that its service has bound."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

_ABOUT: Final = frozenset({"mq", "ack", "apiKey", "signature", "sender", "source", "offset", "window"})
"""Keys of a `pub` that do not become fields of the message."""


class Malformed(Refused):
    """The data is not a valid request."""

    def __init__(self, text: str, form: int = FLAT, ident: Ident = None) -> None:
        super().__init__(BAD, text)
        self.form = form
        self.ident = ident


class PathCall(NamedTuple):
    """A call by the path of an HTTP request, as the client sent it."""

    url: str
    """The URL with its query."""
    verb: str
    """The HTTP method."""
    parts: list[str]
    """Parts of the path."""
    mq: str | None
    """The queue that the query names."""
    body: Any
    kind: str
    """Content type of the body."""


class Request:
    """A request of a client, in either form."""

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
        """All control fields except the command and the id."""
        self.body = body
        self.raw = raw
        """The value that the client sent, for the check of its signature."""
        self.source: bytes | str | None = None
        """The JSON text that the client sent, if it sent JSON."""
        self.key: Any = None
        """The key that signed the request, if the door has keys."""
        self.url: str | None = None
        self.verb: str | None = None
        """The HTTP method; only the headers form has it."""
        self.status: Any = None
        self.plain = False
        """The HTTP answer has the body alone, and its control fields in HTTP headers."""
        self.called: PathCall | None = None
        """The call by the path of an HTTP request; None for any other request."""
        self.more: list[Any] = []
        """Parameters of a call that are not in its path."""
        self.whole = False
        """Whether `more` holds all parameters, so that the path has none."""
        ident = head.pop("id", None)
        if ident is not None and type(ident) not in {str, int, float}:
            raise Malformed("id must be a text or a number", form)
        self.ident: Ident = ident
        cmd = head.pop("cmd", None)
        if cmd is not None and type(cmd) is not str:
            raise Malformed("cmd must be a text", form, ident)
        self.cmd: str | None = cmd.lower() if cmd else None

    def text(self, key: str) -> str | None:
        """The text of a key; None if the key is missing. Some clients send a number, which counts as its digits."""
        value = self.head.get(key)
        if value is None or type(value) is str:
            return value or None
        if type(value) is int:
            return str(value)
        raise Malformed(f"{key} must be a text", self.form, self.ident)

    def number(self, key: str) -> int | None:
        """The whole number of a key, which a client may send as text."""
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
        """The seconds of a key, which a client may send as text."""
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

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001, the call reads like dict.get
        """The truth value of a key, which a client may send as text."""
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
        """Whether the request calls a service, by a method or by a URL."""
        if self.url is not None:
            return not self.at_root and self.url != ""
        return self.form == FLAT and "method" in self.head

    @property
    def at_root(self) -> bool:
        """Whether the URL is `/`, which is a call only if a service has bound that URL."""
        return self.url is not None and self.url.partition("?")[0] == "/"

    def address_by_name(self, mq: str, count: int) -> None:
        """Address a call by path with a queue, which is the first `count` parts of the path, a module and a method."""
        assert self.called is not None
        module, method, params = url_calls.named(self.called.parts[count:])
        self.head |= {"mq": mq, "module": module, "method": method}
        self.head["params"] = self.more if self.whole else [*params, *self.more]

    def address_by_url(self, bound: str) -> None:
        """Address a call with its URL as it came, for the service that has bound the URL `bound`."""
        if (called := self.called) is not None:
            kind = called.kind if called.body is not UNSET and not self.whole else ""
            self.head = {"content-type": kind} if kind else {}
            self.url, self.verb, self.body = called.url, called.verb, called.body
        self.head[BOUND] = bound


def parse(data: bytes | str) -> Request:
    """The request in the JSON of a frame or an HTTP body. Raises Malformed."""
    try:
        raw = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Malformed("json format required") from None
    request = of(raw)
    request.source = data
    return request


def of(raw: Any, *, body: Any = UNSET) -> Request:
    """The request in a decoded JSON value. Raises Malformed."""
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
    """The JSON of the answer to a request, in the form of the request."""
    if form == FLAT:
        return _encode({**(head or {}), "id": ident, "status": status, "body": body})
    return _encode({"headers": {**(head or {}), "id": ident}, "status": status, "body": body})


def encoded(value: Any) -> bytes:
    """The JSON of a value."""
    return _encode(value)


def stored(request: Request, ident: Ident, sender: str) -> tuple[bytes | str, dict[str, Any]]:
    """Payload and fields of the message of a `pub`. Raises the errors of payload_of()."""
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
    """The JSON of a stored message for a subscriber; see shown()."""
    return _encode(shown(form, mq, channel, message, base, window))


def shown(form: int, mq: str, channel: str, message: Message, base: int, window: int | None = None) -> dict[str, Any]:
    """A stored message in one of the forms, as a value. `base` is the stream offset of message 0 of the queue."""
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
    result = {"mq": mq, "channel": channel, "sender": sender, "id": ident, "offset": offset}
    if window is not None:
        result["window"] = window
    if fields:
        if "tag" in fields:
            fields["topic"] = fields.pop("tag")
        url = fields.pop(BOUND, None)
        if "url" in fields and "method" not in fields:  # a call in the headers form
            module, method, params = url_calls.called(str(fields["url"]), url, mq, body)
            fields |= {"module": module, "method": method, "params": params}
        result = fields | result
    if mark == bodies.PARAMS:
        result["params"] = body
    elif body is not UNSET:
        result["body"] = body
    return result


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
    if url is None and "method" in fields:  # a call in the flat form
        url = "/".join(("", *(str(fields[key]) for key in ("module", "method") if fields.get(key))))
    head = fields | {"mq": mq, "channel": channel, "source": sender, "id": ident, "offset": str(offset)}
    if window is not None:
        head["window"] = str(window)
    optional = (("url", url), ("method", verb), ("status", status))
    result: dict[str, Any] = {"headers": head} | {key: value for key, value in optional if value is not None}
    if body is not UNSET:
        result["body"] = body
    if url is not None:  # some services accept only a call that has all of these
        result.setdefault("status", None)
        result.setdefault("body", None)
    return result
