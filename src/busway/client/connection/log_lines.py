"""Log lines of a client that could repeat: failures of handlers, and messages that were missed.

A driver. A failure is one line at ERROR. The traceback follows the first line of its kind in a minute, and every line if
the logger is at DEBUG. After ten lines of a kind in ten seconds one line has the number of the others. Missed messages are one WARNING at once, and then one line with their sum every ten seconds.
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
"""Seconds in which only the first failure of a kind shows its traceback."""
QUIET: Final = 10.0
"""Seconds between two lines about missed messages of a subscription, and in which LINES failures of a kind are logged."""
LINES: Final = 10
GONE: Final = "the stream does not have them any more"
_KINDS: Final = 1024
"""Kinds of failures that are remembered."""
_Kind: TypeAlias = tuple[str, str, type[BaseException]]
_LONGEST: Final = 1024
"""Characters of an error."""


@dataclass(slots=True)
class _Failures:
    """The failures of one kind."""

    error: BaseException
    """The last one."""
    traceback: float = 0.0
    """When the next traceback may be shown."""
    until: float = 0.0
    """When the next LINES may be logged."""
    lines: int = 0
    more: int = 0
    """Failures that were not logged."""


class LogLines:
    """The log lines of one client. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[_Kind, _Failures] = {}
        self._sums: dict[tuple[str, str], int] = {}

    def failed(self, error: BaseException, what: str, topic: str) -> None:
        """A handler, a rule or the like raised this."""
        place = f" of {topic!r}" if topic else ""
        if isinstance(
            error, PayloadError
        ):  # another client's fault, which the text describes: a traceback adds nothing
            log.warning("%s%s: %s", what, place, error, extra={"topic": topic, "error": type(error).__name__})
            return
        kind, now, debug = (what, topic, type(error)), self._clock(), log.isEnabledFor(logging.DEBUG)
        if (one := self._failures.get(kind)) is None:
            if len(self._failures) >= _KINDS:
                self._sum_up()
                self._failures.clear()
            one = self._failures[kind] = _Failures(error, now)
        if now >= one.until:
            self._log_more(kind, one)
            one.until, one.lines = now + QUIET, 0
        one.error = error
        if one.lines >= LINES and not debug:
            one.more += 1
            if one.more == 1:
                with suppress(RuntimeError):  # no loop: the next failure, or the end, logs it
                    asyncio.get_running_loop().call_later(one.until - now, self._log_more, kind, one)
            return
        one.lines += 1
        first = now >= one.traceback
        if first:
            one.traceback = now + TRACEBACK
        log.error(
            "%s%s: %s",
            what,
            place,
            words(error),
            exc_info=error if first or debug else None,
            extra={"topic": topic, "error": type(error).__name__},
        )

    def _sum_up(self) -> None:
        for kind, one in self._failures.items():
            self._log_more(kind, one)

    @staticmethod
    def _log_more(kind: _Kind, one: _Failures) -> None:
        """Log how many failures of a kind were not logged."""
        more, one.more = one.more, 0
        if more:
            what, topic, _ = kind
            place = f" of {topic!r}" if topic else ""
            extra = {"topic": topic, "error": type(one.error).__name__, "failures": more}
            log.error("%s%s: %d more failures, the last one: %s", what, place, more, words(one.error), extra=extra)

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
        self._sum_up()
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
