"""A message as it arrived, and the replies of several services to one request."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, final

from busway._core import Message
from busway.errors import BusError

__all__ = ["Failed", "Message", "Replies"]

M = TypeVar("M")


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """A service that was asked and gave no good reply."""

    sender: str
    """Its name, or its session in hexadecimal digits; empty if it is not known who."""
    error: BusError


class Replies(list[M]):
    """The replies to one request, in the order they came. `failed` tells of the services that gave none."""

    def __init__(self, replies: Iterable[M] = (), failed: Iterable[Failed] = ()) -> None:
        super().__init__(replies)
        self.failed: list[Failed] = list(failed)

    def __repr__(self) -> str:
        return f"Replies({super().__repr__()}, failed={self.failed!r})"
