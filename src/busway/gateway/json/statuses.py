"""The status that a request is answered with when the bus says no. Values only."""

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
"""The text for a request that names no command and calls nothing."""

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


class Refused(Exception):  # noqa: N818, it says what happened
    """A request that is not done, with the status and the text for whoever sent it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def _of_service(code: int | str) -> int:
    """The status that a service chose, by a code such as "404"; that of a payload which does not fit; else FAILED."""
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit() and code[0] in "45":
        return int(code)
    return BAD if code == "PayloadError" else FAILED


def told(error: Exception) -> tuple[int, str]:
    """Status and text for an error of the bus, or of a value that was given."""
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
