"""HTTP requests as requests of the JSON door: the body, the query, the path, or the HTTP headers say what is asked. Values only."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from busway.gateway.json import envelope
from busway.gateway.json.envelope import HEADERS, UNSET, Called, Malformed, Request
from busway.gateway.json.url_calls import named

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
    asked = dict(query)
    if type(body) is bytes and body:
        if (request := _whole(body)) is not None:
            return request
        if "cmd" not in asked and path == "/":
            raise Malformed("json format required")
    sent = _sent(headers, body)
    if "cmd" in asked or (path == "/" and not asked.keys().isdisjoint({"method", "mq"})):
        given = asked.pop("body", UNSET)
        raw: dict[str, Any] = dict(asked)
        if (value := sent if sent is not UNSET else given) is not UNSET:
            raw["body"] = value
        raw.pop("headers", None)
        return envelope.of(raw)
    return _called(verb, url, asked, headers.get("Content-Type", ""), sent)


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


def _called(verb: str, url: str, query: dict[str, str], kind: str, sent: Any) -> Request:
    """`/<mq>/<module>/<method>/<parameters>`: a call of a service."""
    parts = [unquote(part, errors="replace") for part in url.partition("?")[0].split("/") if part]
    body = _json(sent)
    mq = query.pop("mq", None)
    split = [one for part in query.pop("params", "").split("/") for one in part.split(",") if one]
    whole = type(body) is list
    more: list[Any] = body if whole else split if body is UNSET else [*split, body]
    module, method, params = named(parts if mq else parts[1:])
    first = mq or (parts[0] if parts else None)
    said = {"mq": first, "ack": False, "module": module, "method": method}
    request = envelope.of(query | said | {"params": more if whole else [*params, *more]})
    request.called = Called(_unsigned(url), verb, parts, mq, body if whole else sent, kind)
    request.plain = True
    request.more, request.whole = more, whole
    path = [*mq.split("/"), *parts] if mq else parts
    request.url = "/" + "/".join(quote(part, safe="") for part in path)
    return request


def _unsigned(url: str) -> str:
    """A URL without the key and the signature in its query, which are not for the service."""
    path, mark, query = url.partition("?")
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] not in {"apiKey", "signature"})
    return path + mark + rest if rest else path


def by_name(request: Request, mq: str, count: int) -> None:
    """Have a call by path say its queue, which is the first `count` parts, its module, its method and its parameters."""
    assert request.called is not None
    module, method, params = named(request.called.parts[count:])
    request.head |= {"mq": mq, "module": module, "method": method}
    request.head["params"] = request.more if request.whole else [*params, *request.more]


def by_url(request: Request, bound: str) -> None:
    """Have a call say its URL, for the service that has bound this one: as it came, with the method of HTTP and its body."""
    if (called := request.called) is not None:
        kind = called.kind if called.body is not UNSET and not request.whole else ""
        request.head = {"content-type": kind} if kind else {}
        request.url, request.verb, request.body = called.url, called.verb, called.body
    request.head[envelope.BOUND] = bound


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
