"""Why a message of a channel was not acknowledged: the values that its dead letter records, and their limits."""

from typing import Annotated, Final, NamedTuple

import msgspec

REASON: Final = 1024
TRACEBACK: Final = 2048
NAME: Final = 256
"""The most characters of a reason, of traceback lines, and of the name of a type, a consumer or a host."""

_Name = Annotated[str, msgspec.Meta(max_length=NAME)]


class Failure(msgspec.Struct, frozen=True):
    """Why a delivery failed, as reported by the consumer or by the broker in its place."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON)] = ""
    error: _Name = ""
    """The type of the exception that the handler raised."""
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK)] = ""
    """The last lines of the traceback of that exception."""
    consumer: _Name = ""
    host: _Name = ""

    def short(self) -> "Failure":
        """The failure without its traceback, for a channel that stores very many."""
        return Failure(self.reason[:_SHORT], self.error, "", self.consumer, self.host)


class Deliveries(NamedTuple):
    """The failed deliveries of a message that is about to become a dead letter."""

    failure: Failure
    first: float
    last: float
    """The times of the first delivery since the broker started and of the last one, by the clock of the machine."""


_SHORT: Final = 128
UNKNOWN: Final = Failure(reason="not acknowledged; the broker was restarted since, so the reason is not known")


def left_behind(consumer: str) -> Failure:
    """The failure of a consumer that left the channel or lost its connection."""
    return Failure(reason="its consumer left, or its connection was lost, before it acknowledged", consumer=consumer)


def expired(consumer: str, lease: float) -> Failure:
    """The failure of a consumer whose lease ended."""
    return Failure(reason=f"its lease of {lease:g} s ended before its consumer acknowledged", consumer=consumer)
