"""Conversion of calls by URL into module, method and arguments, for services of the flat form. Pure functions.

The request parser and the envelopes call it.
"""

from typing import Any
from urllib.parse import parse_qsl, unquote

from msgspec import UNSET


def named(parts: list[str]) -> tuple[str, str, list[str]]:
    """Module, method and arguments from the parts of a path that follow the queue."""
    return parts[0] if parts else "index", parts[1] if len(parts) > 1 else "index", parts[2:]


def called(url: str, bound: str | None, mq: str, body: Any) -> tuple[str, str, Any]:
    """Module, method and arguments of a call of `url`, which a service of the queue `mq` has bound as `bound`.

    The arguments are the body; without a body, the rest of the URL after the bound part.
    """
    path, _, query = url.partition("?")
    parts = [unquote(part) for part in path.split("/") if part]
    bound_parts = parts if bound is None else [part for part in bound.split("/") if part]
    rest = parts[len(bound_parts) :]
    if bound is not None and "/".join(bound_parts) == mq.strip("/"):  # the service has bound the name of the queue
        module, method, rest = named(rest)
    else:
        module = bound_parts[-2] if len(bound_parts) > 1 else ""
        method = bound_parts[-1] if bound_parts else ""
    if body is not UNSET:
        return module, method, body
    options = dict(parse_qsl(query))
    return module, method, [*rest, options] if options else rest
