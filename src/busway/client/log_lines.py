"""Log lines of a client that could repeat: failures of handlers, and messages that were missed.

A driver. A failure is one line at ERROR. The traceback follows the first line of its kind in a minute, and every line if
the logger is at DEBUG. Missed messages are one WARNING at once, and then one line with their sum every ten seconds.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from busway.errors import PayloadError

log = logging.getLogger("busway.client")

TRACEBACK: Final = 60.0
"""Seconds in which only the first failure of a kind shows its traceback."""
QUIET: Final = 10.0
"""Seconds between two lines about missed messages of a subscription."""
GONE: Final = "the stream does not have them any more"
_KINDS: Final = 1024
"""Kinds of failures that are remembered."""
_LONGEST: Final = 1024
"""Characters of an error."""


class LogLines:
    """The log lines of one client. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown: dict[tuple[str, str, type[BaseException]], float] = {}
        self._sums: dict[tuple[str, str], int] = {}

    def failed(self, error: BaseException, what: str, topic: str) -> None:
        """A handler, a rule or the like raised this."""
        place = f" of {topic!r}" if topic else ""
        if isinstance(
            error, PayloadError
        ):  # another client's fault, which the text describes: a traceback adds nothing
            log.warning("%s%s: %s", what, place, error, extra={"topic": topic, "error": type(error).__name__})
            return
        kind, now = (what, topic, type(error)), self._clock()
        first = now >= self._shown.get(kind, now)
        if first:
            if len(self._shown) >= _KINDS:
                self._shown.clear()
            self._shown[kind] = now + TRACEBACK
        log.error(
            "%s%s: %s",
            what,
            place,
            words(error),
            exc_info=error if first or log.isEnabledFor(logging.DEBUG) else None,
            extra={"topic": topic, "error": type(error).__name__},
        )

    def missed(self, topic: str, count: int, why: str) -> None:
        """So many messages of a subscription or channel have not come and will not."""
        key = topic, why
        if key in self._sums:
            self._sums[key] += count
            return
        self._sums[key] = count
        self._tell(key)

    def end(self) -> None:
        """The client is closed: log the sums that are left."""
        for key in list(self._sums):
            self._log(key, self._sums.pop(key))

    def _tell(self, key: tuple[str, str]) -> None:
        if not (count := self._sums.pop(key, 0)):
            return
        self._log(key, count)
        self._sums[key] = 0
        asyncio.get_running_loop().call_later(QUIET, self._tell, key)

    @staticmethod
    def _log(key: tuple[str, str], count: int) -> None:
        if count:
            topic, why = key
            log.warning("%r missed %d message(s): %s", topic, count, why, extra={"topic": topic, "missed": count})


def words(error: BaseException) -> str:
    """The type of an error and what it says, on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001, the exception of a user may fail even here
        text = ""
    name = type(error).__name__
    return f"{name}: {text[:_LONGEST]}" if text else name
