"""What is wrong with streams that can't be copied: told when it begins, when it is something else, and when it is over. A machine.

What can't be copied is tried again every few seconds, and fails in the same way as long as a disk is full.
"""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_NUMBERS: Final = re.compile(r"\d+")


class Problems(Generic[K]):
    """By stream, or by link and stream."""

    def __init__(self) -> None:
        self._texts: dict[K, str] = {}

    def get(self, key: K) -> str | None:
        return self._texts.get(key)

    def is_new(self, key: K, text: str) -> bool:
        """Something is wrong; whether that is to be told. Another number of bytes in the text is the same trouble."""
        before, self._texts[key] = self._texts.get(key), text
        return before is None or _NUMBERS.sub("", before) != _NUMBERS.sub("", text)

    def over(self, key: K) -> bool:
        """All is well; whether it was not."""
        return self._texts.pop(key, None) is not None

    def forget(self, which: Callable[[K], bool]) -> None:
        """These do not matter any more."""
        self._texts = {key: text for key, text in self._texts.items() if not which(key)}
