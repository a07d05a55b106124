"""Registry of the channels of `fusebus`: names with numbers, in the order of their registration. A machine.

`exchange.py` and the file `channels` use it. A channel is a topic of the bus, so its name must be a valid topic in
normal form: without wildcards, without a slash in front, and not reserved for the broker.
"""

from collections.abc import Iterable, Iterator
from errno import EINVAL, ENOSPC

from busway.errors import BusError
from busway.gateway.files.config import LONGEST_NAME
from busway.topic import check_topic, is_reserved


class Registry:
    """The channels, numbered from 0. A channel is never removed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.text = b""
        """Content of the file `channels`."""

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def number(self, name: str) -> int | None:
        """The number of a channel; None if it is not registered."""
        return self._numbers.get(name)

    def unknown(self, data: bytes) -> list[str]:
        """The new names in written data, each once. Raises OSError for an invalid name or too many channels."""
        found: dict[str, None] = {}
        for line in data.split(b"\n"):
            if line and (name := checked(line)) not in self._numbers:
                found[name] = None
        self.room(found)
        return list(found)

    def room(self, names: Iterable[str]) -> None:
        """Raises OSError if there are too many channels with these names."""
        new = sum(name not in self._numbers for name in names)
        if len(self.names) + new > self._limit:
            raise OSError(ENOSPC, f"too many channels: the limit is {self._limit}")

    def add(self, name: str) -> int:
        """Register a checked name if it is new, and return its number."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            self.text += name.encode() + b"\n"
        return number


def checked(line: bytes) -> str:
    """The channel name in a line. Raises OSError if it is invalid."""
    if len(line) > LONGEST_NAME:
        raise OSError(EINVAL, f"the name of the channel is too long: it may have {LONGEST_NAME} bytes")
    try:
        name = line.decode()
        if check_topic(name, wildcards=False) == name and not is_reserved(name):
            return name
    except (UnicodeDecodeError, BusError):
        pass
    raise OSError(EINVAL, f"{line!r} is not a valid topic of the bus")
