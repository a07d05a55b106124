"""Starts the client programs of a world, and replaces killed ones; runs and the fault injector call it."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from busway.testing.simulation.process import Process
from busway.testing.simulation.world import World
from tests.simulation.workload.client import Program

Make: TypeAlias = Callable[[str, str, Random, int], Program]
"""Creates the program of a host from the host, its name, its random numbers and its number of steps."""


class Processes:
    """The client programs of a world, by their hosts."""

    def __init__(self, world: World, make: Make, steps: int, *, apart: int = 1) -> None:
        self.programs: dict[str, Program] = {}
        self._processes: dict[str, Process] = {}
        self._world = world
        self._make = make
        self._steps = steps
        self._apart = apart
        """The maximum skew of the hosts' clocks in nanoseconds."""
        self._lives: Counter[str] = Counter()

    def process(self, client: str) -> Process:
        return self._processes[client]

    def replace(self, client: str) -> None:
        """Start another program on a host, with fewer steps."""
        self._lives[client] += 1
        self.start(client, max(self._steps // 4, 1))

    def start(self, client: str, steps: int) -> None:
        name = f"{client}.{self._lives[client] + 1}"
        program = self._make(client, name, self._world.random(f"program {name}"), steps)
        self.programs[client] = program
        skew = self._world.random(f"clock {client}").randrange(self._apart)
        self._processes[client] = self._world.launch(name, client, program.main, skew=skew)

    def living(self) -> list[Program]:
        return [program for client, program in self.programs.items() if self._processes[client].alive]
