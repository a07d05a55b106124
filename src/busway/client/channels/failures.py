"""Describes a failed delivery for a NACK: its reason, its exception and its traceback, within the limits of the frame.

Channel and the typed channels call it.
"""

import socket
import traceback
from functools import cache
from typing import Any, Final

from busway.common.checks import check_type
from busway.errors import PayloadError, Reject

_REASON: Final = 1024
"""Most characters of a reason."""
_TRACEBACK: Final = 2048
"""Most characters of a traceback."""
_LINES: Final = 10
"""Most lines of a traceback."""
_NAME: Final = 256
"""Most characters of a consumer, host or exception type."""


class Misfit(Reject):
    """The payload of a message of a typed channel does not fit its type, so the handler was not called."""

    def __init__(self, error: PayloadError) -> None:
        super().__init__(str(error))
        self.error = error


def misfit(error: PayloadError, *, consumer: str = "") -> dict[str, Any]:
    """The map `failure` of a NACK for a payload that does not fit its type: the reason names the field."""
    return described(error.brief, consumer=consumer) | {"error": type_name(error)}


def described(reason: str | None, error: BaseException | None = None, *, consumer: str = "") -> dict[str, Any]:
    """The map `failure` of a NACK. Without a reason and an exception it names only the consumer and its host."""
    if reason is not None:
        check_type("reason", reason, str, "a text")
    failure = {
        "reason": _cut(_text(error) if reason is None and error is not None else reason or "", _REASON),
        "consumer": _cut(consumer, _NAME),
        "host": _host(),
    }
    if error is not None:
        failure["error"] = _cut(type_name(error), _NAME)
        # The program raised a Reject on purpose, so its traceback is of no use.
        failure["traceback"] = "" if isinstance(error, Reject) and error.__cause__ is None else _lines(error)
    return {name: _encodable(value) for name, value in failure.items() if value}


def type_name(error: BaseException) -> str:
    """The type of an exception, with its module unless it is built in."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001, str() of a user's exception may raise
        return type(error).__name__


def _lines(error: BaseException) -> str:
    """The last lines of an exception's traceback."""
    try:
        lines = "".join(traceback.format_exception(error, limit=-_LINES)).splitlines()
    except Exception:  # noqa: BLE001, as above
        return ""
    text = "\n".join(lines[-_LINES:])
    return text if len(text) <= _TRACEBACK else "…" + text[1 - _TRACEBACK :]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


@cache
def _host() -> str:
    return socket.gethostname()[:_NAME]
