"""What a consumer says of a delivery that failed: the reason, the exception and where it was raised, within the limits of NACK."""

import socket
import traceback
from functools import cache
from typing import Any, Final

from busway.common.checks import check_type
from busway.errors import PayloadError, Reject

_REASON: Final = 1024
_TRACEBACK: Final = 2048
_LINES: Final = 10
_NAME: Final = 256
"""The most characters of a reason and a traceback, lines of a traceback, and characters of a name."""


class Misfit(Reject):
    """A message of a typed channel whose payload does not fit; its handler was not called."""

    def __init__(self, error: PayloadError) -> None:
        super().__init__(str(error))
        self.error = error


def misfit(error: PayloadError, *, consumer: str = "") -> dict[str, Any]:
    """The map `failure` of a NACK for a payload that does not fit its type: the reason names the field."""
    return described(error.brief, consumer=consumer) | {"error": type_name(error)}


def described(reason: str | None, error: BaseException | None = None, *, consumer: str = "") -> dict[str, Any]:
    """The map `failure` of a NACK: empty if nothing is known."""
    if reason is not None:
        check_type("reason", reason, str, "a text")
    if reason is None and error is None:
        return {}
    said = {
        "reason": _cut(_text(error) if reason is None and error is not None else reason or "", _REASON),
        "consumer": _cut(consumer, _NAME),
        "host": _host(),
    }
    if error is not None:
        said["error"] = _cut(type_name(error), _NAME)
        # The author of a Reject knows where it is raised.
        said["traceback"] = "" if isinstance(error, Reject) and error.__cause__ is None else _lines(error)
    return {name: _encodable(value) for name, value in said.items() if value}


def type_name(error: BaseException) -> str:
    """The type of an exception with its module, unless that is a built-in one."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001, the exception of a user may fail even here
        return type(error).__name__


def _lines(error: BaseException) -> str:
    """The last lines of its traceback."""
    try:
        lines = "".join(traceback.format_exception(error, limit=-_LINES)).splitlines()
    except Exception:  # noqa: BLE001, as above
        return ""
    text = "\n".join(lines[-_LINES:])
    return text if len(text) <= _TRACEBACK else "…" + text[1 - _TRACEBACK :]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _encodable(text: str) -> str:
    """Lone surrogates can't be sent."""
    return text.encode(errors="replace").decode()


@cache
def _host() -> str:
    return socket.gethostname()[:_NAME]
