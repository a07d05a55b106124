"""The channels: names with numbers, in the order in which they were registered. A machine.

A channel is a topic of the bus, so its name has to be one, written in one way only: no wildcard, no slash in front, none of
the broker's own.
"""

from collections.abc import Iterable, Iterator
from errno import EINVAL, ENOSPC

from busway.errors import BusError
from busway.gateway.files.config import LONGEST_NAME
from busway.topic import check_topic, is_reserved


class Registry:
    """Numbers from 0; nothing is ever removed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.text = b""
        """The file `channels`."""

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def number(self, name: str) -> int | None:
        return self._numbers.get(name)

    def unknown(self, data: bytes) -> list[str]:
        """The names of a write that are new, each once. OSError: one of them can't be, or there is no room for all."""
        found: dict[str, None] = {}
        for line in data.split(b"\n"):
            if line and (name := checked(line)) not in self._numbers:
                found[name] = None
        self.room(found)
        return list(found)

    def room(self, names: Iterable[str]) -> None:
        """OSError: there is none for these."""
        new = sum(name not in self._numbers for name in names)
        if len(self.names) + new > self._limit:
            raise OSError(ENOSPC, f"there are {self._limit} channels at most")

    def add(self, name: str) -> int:
        """The number of a checked name, which may be new."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            self.text += name.encode() + b"\n"
        return number


def checked(line: bytes) -> str:
    """The name that a line is. OSError: it can't be one."""
    if len(line) > LONGEST_NAME:
        raise OSError(EINVAL, f"the name of a channel has {LONGEST_NAME} bytes at most")
    try:
        name = line.decode()
        if check_topic(name, wildcards=False) == name and not is_reserved(name):
            return name
    except (UnicodeDecodeError, BusError):
        pass
    raise OSError(EINVAL, f"{line!r} can't be a topic of the bus")
