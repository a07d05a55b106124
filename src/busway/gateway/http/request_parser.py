"""Parser of HTTP requests: makes a `Request` from the body, the query, the path or the headers. Values only.

`plain.py` calls it for each request of a plain HTTP client.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from busway.gateway.json import envelope
from busway.gateway.json.envelope import HEADERS, UNSET, Malformed, PathCall, Request
from busway.gateway.json.url_calls import named

_KEYS: Final = {
    key.lower(): key
    for key in ("mqType", "mqMask", "channelMask", "clearBind", "apiKey")  # HTTP header names are case-insensitive
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
"""Headers of HTTP itself, which do not become part of a message."""


def of(verb: str, url: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str], body: Any) -> Request:
    """The request of a client.

    `url` is the raw URL, `query` its decoded query, and `body` is bytes or the members of a form. Raises Malformed.
    """
    path = url.partition("?")[0]
    if "cmd" in headers or ("mq" in headers and path == "/"):
        return _from_headers(verb, url, query, headers, body)
    parameters = dict(query)
    if type(body) is bytes and body:
        if (request := _from_body(body)) is not None:
            return request
        if "cmd" not in parameters and path == "/":
            raise Malformed("json format required")
    decoded = _decoded(headers, body)
    if "cmd" in parameters or (path == "/" and not parameters.keys().isdisjoint({"method", "mq"})):
        query_body = parameters.pop("body", UNSET)
        raw: dict[str, Any] = dict(parameters)
        if (value := decoded if decoded is not UNSET else query_body) is not UNSET:
            raw["body"] = value
        raw.pop("headers", None)
        return envelope.of(raw)
    return _from_path(verb, url, parameters, headers.get("Content-Type", ""), decoded)


def _from_body(body: bytes) -> Request | None:
    """The request in a body that is a whole JSON message; None if the body is something else."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if type(raw) is dict and (type(raw.get("headers")) is dict or "cmd" in raw or "method" in raw):
        request = envelope.of(raw)
        request.source = body
        return request
    return None


def _from_headers(
    verb: str, url: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str], body: Any
) -> Request:
    """The request whose control fields are in HTTP headers and, if the path is `/`, in the query."""
    head = {
        _KEYS.get(name, name): value
        for name, value in ((name.lower(), value) for name, value in headers.items())
        if name not in _PLAIN and not name.startswith("sec-")
    }
    try:
        "".join(str(value) for value in head.values()).encode()
    except UnicodeEncodeError:
        raise Malformed("headers must be UTF-8", HEADERS) from None
    decoded = _decoded(headers, body)
    if at_root := url.partition("?")[0] == "/":
        for name, value in query:
            if name == "body" and decoded is UNSET:
                decoded = value
            elif name != "body":
                head[_KEYS.get(name.lower(), name.lower())] = value
    raw: dict[str, Any] = {"headers": head} if at_root else {"headers": head, "url": url, "method": verb}
    if decoded is not UNSET:
        raw["body"] = decoded
    request = envelope.of(raw)
    request.plain = True
    return request


def _from_path(verb: str, url: str, query: dict[str, str], kind: str, decoded: Any) -> Request:
    """A call of a service by the path `/<mq>/<module>/<method>/<parameters>`."""
    parts = [unquote(part, errors="replace") for part in url.partition("?")[0].split("/") if part]
    body = _json(decoded)
    mq = query.pop("mq", None)
    split = [param for part in query.pop("params", "").split("/") for param in part.split(",") if param]
    whole = type(body) is list
    more: list[Any] = body if whole else split if body is UNSET else [*split, body]
    module, method, params = named(parts if mq else parts[1:])
    first = mq or (parts[0] if parts else None)
    control = {"mq": first, "ack": False, "module": module, "method": method}
    request = envelope.of(query | control | {"params": more if whole else [*params, *more]})
    request.called = PathCall(_unsigned(url), verb, parts, mq, body if whole else decoded, kind)
    request.plain = True
    request.more, request.whole = more, whole
    path = [*mq.split("/"), *parts] if mq else parts
    request.url = "/" + "/".join(quote(part, safe="") for part in path)
    return request


def _unsigned(url: str) -> str:
    """A URL without the key and the signature in its query, which the service must not get."""
    path, mark, query = url.partition("?")
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] not in {"apiKey", "signature"})
    return path + mark + rest if rest else path


def _decoded(headers: Mapping[str, str], body: Any) -> Any:
    """The body of a request: as text if its type is a text or if it has no type and is UTF-8; UNSET if it is empty."""
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
    """The value of a text that is JSON; any other value as it is."""
    if type(value) is str:
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return value
    return value


def printable(value: Any) -> str:
    """A value escaped for an HTTP header, so that it can't end the header."""
    return quote(value if type(value) is str else str(value), safe=" !#$&'()*+,/:;=?@[]~{}|^`<>\"\\%")
