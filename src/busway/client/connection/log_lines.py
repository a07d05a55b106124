"""Rate-limited log lines of a client: failures of handlers, and missed messages.

A driver, called by the core and by its subscriptions, channels and reads. A failure is one line at ERROR. The
traceback follows the first line of its kind in a minute, or every line if the logger is at DEBUG. After ten lines of a
kind in ten seconds, one line has the number of the others. Missed messages are one WARNING at once, then their sum
every ten seconds.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from busway.errors import PayloadError

log = logging.getLogger("busway.client")

TRACEBACK: Final = 60.0
"""Seconds in which only the first failure of a kind is logged with its traceback."""
QUIET: Final = 10.0
"""Seconds in which LINES failures of a kind are logged, and between two lines about the same missed messages."""
LINES: Final = 10
"""Most lines of one kind of failure in QUIET seconds."""
GONE: Final = "the stream does not have them any more"
_KINDS: Final = 1024
"""Most kinds of failures that are tracked."""
_Kind: TypeAlias = tuple[str, str, type[BaseException]]
_MAX_TEXT: Final = 1024
"""Most characters of an error's text."""


@dataclass(slots=True)
class _Failures:
    """The failures of one kind."""

    error: BaseException
    """The last failure."""
    traceback: float = 0.0
    """Time from which the next traceback may be logged."""
    until: float = 0.0
    """Time from which the next LINES lines may be logged."""
    lines: int = 0
    suppressed: int = 0
    """Failures that were not logged."""


class LogLines:
    """The log lines of one client. `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[_Kind, _Failures] = {}
        self._sums: dict[tuple[str, str], int] = {}

    def failed(self, error: BaseException, what: str, topic: str) -> None:
        """Log an error that a handler, a rule or another function of the user raised."""
        place = f" of {topic!r}" if topic else ""
        if isinstance(error, PayloadError):  # caused by another client; a traceback of this one would not help
            log.warning("%s%s: %s", what, place, error, extra={"topic": topic, "error": type(error).__name__})
            return
        kind, now, debug = (what, topic, type(error)), self._clock(), log.isEnabledFor(logging.DEBUG)
        if (failures := self._failures.get(kind)) is None:
            if len(self._failures) >= _KINDS:
                self._log_all_suppressed()
                self._failures.clear()
            failures = self._failures[kind] = _Failures(error, now)
        if now >= failures.until:
            self._log_suppressed(kind, failures)
            failures.until, failures.lines = now + QUIET, 0
        failures.error = error
        if failures.lines >= LINES and not debug:
            failures.suppressed += 1
            if failures.suppressed == 1:
                with suppress(RuntimeError):  # without a loop the next failure or end() logs the number
                    asyncio.get_running_loop().call_later(failures.until - now, self._log_suppressed, kind, failures)
            return
        failures.lines += 1
        first = now >= failures.traceback
        if first:
            failures.traceback = now + TRACEBACK
        log.error(
            "%s%s: %s",
            what,
            place,
            describe(error),
            exc_info=error if first or debug else None,
            extra={"topic": topic, "error": type(error).__name__},
        )

    def _log_all_suppressed(self) -> None:
        for kind, failures in self._failures.items():
            self._log_suppressed(kind, failures)

    @staticmethod
    def _log_suppressed(kind: _Kind, failures: _Failures) -> None:
        """Log the number of failures of a kind that were not logged."""
        count, failures.suppressed = failures.suppressed, 0
        if count:
            what, topic, _ = kind
            place = f" of {topic!r}" if topic else ""
            extra = {"topic": topic, "error": type(failures.error).__name__, "failures": count}
            last = describe(failures.error)
            log.error("%s%s: %d more failures, the last one: %s", what, place, count, last, extra=extra)

    def missed(self, topic: str, count: int, why: str) -> None:
        """Log that `count` messages of a subscription or channel were lost."""
        key = topic, why
        if key in self._sums:
            self._sums[key] += count
            return
        self._sums[key] = count
        self._log_sum(key)

    def end(self) -> None:
        """Log the remaining sums when the client is closed."""
        self._log_all_suppressed()
        for key in list(self._sums):
            self._log(key, self._sums.pop(key))

    def _log_sum(self, key: tuple[str, str]) -> None:
        if not (count := self._sums.pop(key, 0)):
            return
        self._log(key, count)
        self._sums[key] = 0
        asyncio.get_running_loop().call_later(QUIET, self._log_sum, key)

    @staticmethod
    def _log(key: tuple[str, str], count: int) -> None:
        if count:
            topic, why = key
            log.warning("%r missed %d message(s): %s", topic, count, why, extra={"topic": topic, "missed": count})


def describe(error: BaseException) -> str:
    """The type and the text of an error, on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001, the __str__ of a user's exception may raise
        text = ""
    name = type(error).__name__
    return f"{name}: {text[:_MAX_TEXT]}" if text else name
