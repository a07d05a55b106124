"""What a server asks of a door: another way in, which comes and goes with the broker and is a client of it.

Values only. A door stands on the public face of a client (`server.connect()`); it is made by whoever makes the server.
"""

from typing import Protocol


class Door(Protocol):
    """Made before the server starts, opened when it listens, closed before its clients are told to go."""

    kind: str
    """Its name among the doors of a server, such as `http`."""

    @property
    def address(self) -> str:
        """Where it is reached, real port filled in."""

    async def open(self) -> None:
        """Let clients in."""

    async def close(self, seconds: float) -> None:
        """Take no more, tell those that are there, let what waits for them flow out within so many seconds."""
