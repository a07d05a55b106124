"""What the load generators are told. Values only."""

import msgspec

FAN = 8
"""Subscribers of each queue of the work `fan`, and queues for 64 clients."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that publish and get messages, for `load`."""

    kind: str = "gateway"
    port: int = 0
    work: str = "share"
    """`share`: one queue and one channel, each message goes to one client. `fan`: a channel for each client, messages go to eight."""
    clients: int = 64
    depth: int = 1
    """Messages of each client that are on their way; at a fixed rate, that one sends at once."""
    rate: float = 0.0
    """Messages published a second, by all; 0: the next one when one has arrived."""
    ack: bool = True
    seconds: float = 2.0
    warm: float = 0.4
    """Of these seconds, not counted."""
    size: int = 64
    """Of a body."""
    name: str = "bench"
    """Of the queues; a new one for each measurement."""

    @property
    def share(self) -> int:
        """How many clients get a message."""
        return min(FAN, self.clients) if self.work == "fan" and self.kind != "echo" else 1


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """Subscribers of one queue, for `crowd`."""

    port: int = 0
    clients: int = 1000
    channels: int = 100
    rate: float = 40.0
    seconds: float = 4.0
    size: int = 8192
    name: str = "crowd"
