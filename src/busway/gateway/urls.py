"""HTTP requests as requests of the JSON door: the body, the query, the path, or the HTTP headers say what is asked. Values only."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from busway.gateway import envelope
from busway.gateway.envelope import HEADERS, UNSET, Malformed, Request

_KEYS: Final = {
    key.lower(): key
    for key in ("mqType", "mqMask", "channelMask", "clearBind", "apiKey")  # header names have no case
}
_PLAIN: Final = frozenset(
    [
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "access-control-request-headers",
        "access-control-request-method",
        "authorization",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "date",
        "dnt",
        "expect",
        "forwarded",
        "from",
        "host",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "keep-alive",
        "last-event-id",
        "max-forwards",
        "origin",
        "pragma",
        "priority",
        "proxy-authorization",
        "range",
        "referer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "upgrade-insecure-requests",
        "user-agent",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "x-requested-with",
    ]
)
"""Headers of HTTP itself, which are no part of a message."""


def of(verb: str, url: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str], body: Any) -> Request:
    """What an HTTP request asks for: `url` as it came, `query` what it says; `body` is bytes, or what was read from a form. Raises Malformed."""
    path = url.partition("?")[0]
    if "cmd" in headers or ("mq" in headers and path == "/"):
        return _headed(verb, url, query, headers, body)
    named = dict(query)
    if type(body) is bytes and body:
        if (request := _whole(body)) is not None:
            return request
        if "cmd" not in named and path == "/":
            raise Malformed("json format required")
    sent = _sent(headers, body)
    if path == "/" or "cmd" in named:
        given = named.pop("body", UNSET)
        raw: dict[str, Any] = dict(named)
        if (value := sent if sent is not UNSET else given) is not UNSET:
            raw["body"] = value
        raw.pop("headers", None)
        return envelope.of(raw)
    return _called(path, named, _json(sent))


def _whole(body: bytes) -> Request | None:
    """A body that is a whole message."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if type(raw) is dict and (type(raw.get("headers")) is dict or "cmd" in raw or "method" in raw):
        request = envelope.of(raw)
        request.source = body
        return request
    return None


def _headed(verb: str, url: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str], body: Any) -> Request:
    """Control fields in the HTTP headers, and in the query of the path `/`."""
    head = {
        _KEYS.get(name, name): value
        for name, value in ((name.lower(), value) for name, value in headers.items())
        if name not in _PLAIN and not name.startswith("sec-")
    }
    try:
        "".join(str(value) for value in head.values()).encode()
    except UnicodeEncodeError:
        raise Malformed("headers must be UTF-8", HEADERS) from None
    sent = _sent(headers, body)
    if here := url.partition("?")[0] == "/":
        for name, value in query:
            if name == "body" and sent is UNSET:
                sent = value
            elif name != "body":
                head[_KEYS.get(name.lower(), name.lower())] = value
    raw: dict[str, Any] = {"headers": head} if here else {"headers": head, "url": url, "method": verb}
    if sent is not UNSET:
        raw["body"] = sent
    request = envelope.of(raw)
    request.plain = True
    return request


def _called(path: str, named: dict[str, str], body: Any) -> Request:
    """`/<mq>/<module>/<method>/<parameters>`: a call of a service."""
    parts = [unquote(part, errors="replace") for part in path.split("/") if part]
    mq = named.pop("mq", None)
    if mq is None and parts:
        mq = parts.pop(0)
    split = [one for part in named.pop("params", "").split("/") for one in part.split(",") if one]
    head: dict[str, Any] = {
        **named,
        "mq": mq,
        "ack": False,
        "module": parts[0] if parts else "index",
        "method": parts[1] if len(parts) > 1 else "index",
    }
    more: list[Any] = split if body is UNSET else [*split, body]
    if type(body) is list:
        head["params"] = body
    else:
        head["params"] = [*parts[2:], *more]
    request = envelope.of(head)
    request.url = "/".join(("", *(quote(part, safe="") for part in (*(mq or "").split("/"), *parts))))
    request.more = body if type(body) is list else more
    request.whole = type(body) is list
    return request


def _sent(headers: Mapping[str, str], body: Any) -> Any:
    """The body of a request: text, if it is said to be or can be; UNSET if there is none."""
    if type(body) is not bytes:
        return body
    if not body:
        return UNSET
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    text = not kind or kind.startswith("text/") or kind in {"application/json", "application/x-www-form-urlencoded"}
    if text:
        try:
            return body.decode()
        except UnicodeDecodeError:
            if kind:
                raise Malformed(f"a body of the type {kind} must be UTF-8") from None
    return body


def _json(value: Any) -> Any:
    """The value that a text is in JSON, or the text."""
    if type(value) is str:
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return value
    return value


def printable(value: Any) -> str:
    """A value as an HTTP header may have it: nothing of it can end the header."""
    return quote(value if type(value) is str else str(value), safe=" !#$&'()*+,/:;=?@[]~{}|^`<>\"\\%")
