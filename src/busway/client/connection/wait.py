"""The option `wait` of connect(): how long a client waits for its first server, and which errors waiting can cure.

Values and pure functions, used by the lifecycle.
"""

import math
import ssl
from datetime import timedelta
from typing import Final, TypeAlias

from busway.common.durations import seconds
from busway.errors import BusError, Code, RemoteProtocolError

Waits: TypeAlias = bool | float | str | timedelta
"""How long to wait. True: without a limit. False: not at all. Else a duration, such as 30 or "30s"."""

FINAL: Final = {Code.UNAUTHORIZED, Code.VERSION, Code.SESSION_TAKEN, Code.SESSION_SECRET, Code.FORBIDDEN}
"""Codes of errors that a retry can't cure."""


def patience(wait: Waits) -> float:
    """Seconds to wait; 0: not at all. Raises TypeError or ValueError."""
    return (math.inf if wait else 0.0) if isinstance(wait, bool) else seconds("wait", wait)


def is_curable(error: BusError) -> bool:
    """Whether a retry may succeed: False for wrong credentials, versions, certificates and protocols."""
    if error.code in FINAL or isinstance(error, RemoteProtocolError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        ended = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(cause, ssl.SSLError | ValueError) and not ended:  # ValueError: an invalid certificate file
            return False
        cause = cause.__cause__
    return True
