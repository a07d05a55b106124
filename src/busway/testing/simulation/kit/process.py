"""Whose code is running: a simulated process, carried along by the contexts of asyncio's tasks and callbacks.

What a process starts belongs to it. Once it is dead the loop runs nothing of it any more, not even what would tidy up.
"""

from asyncio import Handle
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from busway.testing.simulation.kit.disk import Disk


class Process:
    """One process on one host, from its start to its end; a program that is started again is another process."""

    def __init__(self, name: str, host: str, chance: Random, skew: int = 0) -> None:
        self.name = name
        self.host = host
        self.chance = chance
        self.skew = skew
        """Nanoseconds that the clock of its host is ahead."""
        self.alive = True
        self.held: list[Handle] | None = None
        """What it will do when it wakes; None: it is awake."""
        self.mourners: list[Callable[[], object]] = []
        """Called when it has died."""
        self.disk: Disk | None = None
        """Looks whether there is something to write when something of this process has run."""
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}{'' if self.alive else ', dead'}>"


CURRENT: Final[ContextVar[Process | None]] = ContextVar("busway simulated process", default=None)


def current() -> Process:
    """The process that is running now."""
    process = CURRENT.get()
    if process is None:
        raise RuntimeError("this belongs to no simulated process: start it by World.run()")
    return process
