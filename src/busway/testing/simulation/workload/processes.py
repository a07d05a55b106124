"""The programs of one world, by their hosts: who plays, and who comes when one of them was killed."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from busway.testing.simulation.kit.process import Process
from busway.testing.simulation.kit.world import World
from busway.testing.simulation.workload.client import Program

Make: TypeAlias = Callable[[str, str, Random, int], Program]
"""Makes the program of a host: its name, its chance, how many steps it does."""


class Processes:
    """See above."""

    def __init__(self, world: World, make: Make, steps: int, *, apart: int = 1) -> None:
        self.programs: dict[str, Program] = {}
        self._processes: dict[str, Process] = {}
        self._world = world
        self._make = make
        self._steps = steps
        self._apart = apart
        """Nanoseconds that the clocks of hosts are apart at most."""
        self._lives: Counter[str] = Counter()

    def process(self, client: str) -> Process:
        return self._processes[client]

    def replace(self, client: str) -> None:
        """Another program comes there, which has less to do."""
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
