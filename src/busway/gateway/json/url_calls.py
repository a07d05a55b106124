"""Calls by URL as module, method and arguments, for services that know the flat form. Pure functions."""

from typing import Any
from urllib.parse import parse_qsl, unquote

from msgspec import UNSET


def named(parts: list[str]) -> tuple[str, str, list[str]]:
    """Module, method and arguments of the parts of a path behind the queue."""
    return parts[0] if parts else "index", parts[1] if len(parts) > 1 else "index", parts[2:]


def called(url: str, bound: str | None, mq: str, body: Any) -> tuple[str, str, Any]:
    """Module, method and arguments of a call of `url`, which a service of the queue `mq` has bound as `bound`.

    The arguments are the body; if there is none, what the URL has behind the bound part.
    """
    path, _, query = url.partition("?")
    parts = [unquote(part) for part in path.split("/") if part]
    own = parts if bound is None else [part for part in bound.split("/") if part]
    rest = parts[len(own) :]
    if bound is not None and "/".join(own) == mq.strip("/"):  # the name of the queue itself
        module, method, rest = named(rest)
    else:
        module, method = own[-2] if len(own) > 1 else "", own[-1] if own else ""
    if body is not UNSET:
        return module, method, body
    more = dict(parse_qsl(query))
    return module, method, [*rest, more] if more else rest
