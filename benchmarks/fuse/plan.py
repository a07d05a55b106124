"""What the measuring processes are told. Values only."""

import msgspec

CHANNEL = "BENCH"


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Writes and reads of two open files, for `pairs`."""

    mounts: dict[str, str]
    """The folder of each file system by its name: `plain` has no channels, and takes no subscriptions."""
    sizes: list[int]
    rounds: int
    seconds: float
    """Of each way in a round,"""
    turns: int = 4
    """which it has in so many turns: a slow moment of the machine hits all alike."""


class Trips(msgspec.Struct, frozen=True, kw_only=True):
    """Messages from a file to a native subscriber, one after the other, for `trips`."""

    folder: str
    url: str
    size: int
    messages: int
    """Of each way in a round."""
    rounds: int
