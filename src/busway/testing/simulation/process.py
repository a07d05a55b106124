"""Simulated processes, identified by the contexts of asyncio's tasks and callbacks.

Tasks and callbacks belong to the process that creates them. The loop runs nothing of a dead process, not even cleanup.
"""

from asyncio import Handle
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from busway.testing.simulation.disk import Disk


class Process:
    """A process on a host, from its start to its end. A program that is restarted gets a new process."""

    def __init__(self, name: str, host: str, chance: Random, skew: int = 0) -> None:
        self.name = name
        self.host = host
        self.chance = chance
        self.skew = skew
        """Nanoseconds by which the clock of its host is fast."""
        self.alive = True
        self.held: list[Handle] | None = None
        """Callbacks to run when it resumes; None: it is not suspended."""
        self.exit_callbacks: list[Callable[[], object]] = []
        """Called after its death."""
        self.disk: Disk | None = None
        """The disk that is checked for appended records after each callback of the process."""
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}{'' if self.alive else ', dead'}>"


CURRENT: Final[ContextVar[Process | None]] = ContextVar("busway simulated process", default=None)


def current() -> Process:
    """Return the process whose code is running."""
    process = CURRENT.get()
    if process is None:
        raise RuntimeError("this code runs in no simulated process: start it with World.launch()")
    return process
