"""Problems of streams that can't be copied; both replication drivers use them to log each problem once.

A stream that can't be copied is retried every few seconds and keeps failing in the same way while a disk is full.
A problem is reported when it begins, when its cause changes and when it is over. No input or output.
"""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_NUMBERS: Final = re.compile(r"\d+")


class Problems(Generic[K]):
    """The current problem texts, keyed by stream or by link and stream."""

    def __init__(self) -> None:
        self._texts: dict[K, str] = {}

    def get(self, key: K) -> str | None:
        return self._texts.get(key)

    def is_new(self, key: K, text: str) -> bool:
        """Record a problem. Returns whether it is new: texts that differ in numbers only are the same problem."""
        before, self._texts[key] = self._texts.get(key), text
        return before is None or _NUMBERS.sub("", before) != _NUMBERS.sub("", text)

    def over(self, key: K) -> bool:
        """The problem is over. Returns whether there was one."""
        return self._texts.pop(key, None) is not None

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drop the problems whose key matches."""
        self._texts = {key: text for key, text in self._texts.items() if not matches(key)}
