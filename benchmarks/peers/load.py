"""Values: what a process is told to do, and what came out of one measurement."""

from typing import Any

import msgspec

CHUNK = 1024
"""Publishers look at the clock after this many messages."""
MARK = 64
"""Receivers look at the clock after this many messages; a divisor of CHUNK, so that the last message is always noted."""

IN_FLIGHT = 256
"""Durable publishes that wait for their acknowledgement; also how many messages are taken at once."""
SHARES = 2
"""Calls that share them in the way `halves`."""


class Load(msgspec.Struct, frozen=True):
    """One process's part of a measurement."""

    url: str
    seconds: float = 2.0  # how long to publish or request, warm-up included
    warm: float = 0.4  # the beginning that is not measured
    size: int = 128  # bytes of payload
    topic: str = "bench/data"
    group: str = ""
    mode: str = ""  # for systems with more than one way to do it
    window: int = 1  # requests in flight
    count: int = 0  # of subscriptions, connections or topics, where the work is about them
    fields: dict[str, str] = {}  # of each message, and what a subscriber asks for
    messages: int = 0  # that are stored before they are read or taken
    gib: float = 0.0  # size of a long stream
    data: str = ""  # the folder of the broker's data; none: it keeps nothing
    safety: str = "written"  # of what is stored

    @property
    def payload(self) -> bytes:
        return b"x" * self.size


class Sample(msgspec.Struct, frozen=True):
    """The outcome of one measurement of one system."""

    work: str
    system: str
    repeat: int
    values: dict[str, float]


class Run(msgspec.Struct):
    """Everything a run has found; what the JSON file holds."""

    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    samples: list[Sample]
    failures: list[str]
