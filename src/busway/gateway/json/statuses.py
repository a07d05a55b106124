"""Statuses of JSON answers, and the status for each error of the bus. Values only.

Sessions call `status_of` when a request fails; the door raises `Refused` for a request that it refuses itself.
"""

from typing import Final

from busway.errors import (
    BusError,
    Closed,
    Code,
    Disconnected,
    Forbidden,
    HandlerError,
    LimitExceeded,
    NoResponders,
    ServiceGone,
    Timeout,
)

OK: Final = 200
BAD: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
SLOWLY: Final = 408
TOO_LARGE: Final = 413
MISDIRECTED: Final = 421
FAILED: Final = 500
GONE: Final = 502
AWAY: Final = 503
LATE: Final = 504
NO_DATA: Final = 604
NO_CMD: Final = "cmd key required"
"""The text for a request without a command that does not call a service either."""

_BY_CODE: Final[dict[int, int]] = {
    Code.NO_STREAM: NOT_FOUND,
    Code.NO_CHANNEL: NOT_FOUND,
    Code.CHANNEL_TAKEN: FORBIDDEN,
    Code.SERVICE_TAKEN: FORBIDDEN,
    Code.FRAME_TOO_LARGE: TOO_LARGE,
    Code.TOPIC_TOO_LONG: TOO_LARGE,
    Code.FIELDS_TOO_LARGE: TOO_LARGE,
    Code.INVALID_SETTING: BAD,
    Code.DUPLICATE: BAD,
    Code.TOO_OLD: BAD,
}
_BY_CLASS: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (Forbidden, FORBIDDEN),
    (NoResponders, NOT_FOUND),
    (ServiceGone, GONE),
    (Timeout, LATE),
    (Closed, AWAY),
    (Disconnected, AWAY),
    (LimitExceeded, FAILED),
)


class Refused(Exception):  # noqa: N818, the name states what happened
    """The door refuses a request; carries the status and the text of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def _of_service(code: int | str) -> int:
    """The status for the error code of a service: a code such as "404" itself, BAD for a wrong payload, else FAILED."""
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit() and code[0] in "45":
        return int(code)
    return BAD if code == "PayloadError" else FAILED


def status_of(error: Exception) -> tuple[int, str]:
    """Status and text of the answer for an error of the bus, or for a wrong value in the request."""
    if isinstance(error, Refused):
        return error.status, error.text
    if isinstance(error, BusError) and (status := _BY_CODE.get(error.code)) is not None:
        return status, str(error)
    if isinstance(error, HandlerError):
        return _of_service(error.code), str(error)
    for kind, status in _BY_CLASS:
        if isinstance(error, kind):
            return status, str(error)
    if isinstance(error, ValueError | TypeError):
        return BAD, str(error)
    return FAILED, str(error) or type(error).__name__
