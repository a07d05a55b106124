"""Message, and the replies of several services to one request, as clients return them."""

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
    """A service that failed to answer a request of several services."""

    sender: str
    """The name of the service's client, or its session in hexadecimal digits; empty if unknown."""
    error: BusError


class Replies(list[M]):
    """The replies to one request, in the order of arrival. `failed` lists the services that failed."""

    def __init__(self, replies: Iterable[M] = (), failed: Iterable[Failed] = ()) -> None:
        super().__init__(replies)
        self.failed: list[Failed] = list(failed)

    def __repr__(self) -> str:
        return f"Replies({super().__repr__()}, failed={self.failed!r})"
