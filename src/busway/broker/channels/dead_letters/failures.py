"""Why a message of a channel was not acknowledged: the values that its dead letter records, and their limits."""

from typing import Annotated, Final, NamedTuple

import msgspec

REASON: Final = 1024
TRACEBACK: Final = 2048
NAME: Final = 256
"""The most characters of a reason, of traceback lines, and of the name of a type, a consumer or a host."""

_Name = Annotated[str, msgspec.Meta(max_length=NAME)]


class Failure(msgspec.Struct, frozen=True):
    """What a consumer, or the broker in its place, says of a delivery that failed."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON)] = ""
    error: _Name = ""
    """The type of the exception that the handler raised."""
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK)] = ""
    """Its last lines."""
    consumer: _Name = ""
    host: _Name = ""

    def short(self) -> "Failure":
        """The same without its traceback, for a channel that holds very many."""
        return Failure(self.reason[:_SHORT], self.error, "", self.consumer, self.host)


class Deliveries(NamedTuple):
    """How the deliveries of a message went that is about to be a dead letter."""

    failure: Failure
    first: float
    last: float
    """When it was delivered first, since the broker started, and last; by the clock of the machine."""


_SHORT: Final = 128
UNKNOWN: Final = Failure(reason="not acknowledged; the broker was restarted since, so the reason is not known")


def left_behind(consumer: str) -> Failure:
    """The connection of a consumer ended, or it left the channel."""
    return Failure(reason="its consumer left, or its connection was lost, before it acknowledged", consumer=consumer)


def expired(consumer: str, lease: float) -> Failure:
    """A lease ended."""
    return Failure(reason=f"its lease of {lease:g} s ended before its consumer acknowledged", consumer=consumer)
