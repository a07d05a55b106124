"""The common part of runs with one broker and with a cluster: network, faults, waiting for the work, shutdown."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, TypeAlias

from busway.settings import KiB
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read import until
from tests.simulation.faults.plan import DISK, POWER, FaultInjector, plan
from tests.simulation.workload.history import History
from tests.simulation.workload.processes import Processes

Safety: TypeAlias = Literal["memory", "written", "synced", "mirrored"]
HOUR: Final = 3600 * 10**9
GAPS: Final = (0.02, 0.05, 0.25)
"""Average seconds between two actions of a program."""
_DELAYS: Final = (0.0002, 0.005, 0.05, 0.2)
_ENDING: Final = 60.0


@dataclass(slots=True)
class Scenario:
    """A run in a world, from its start to its end."""

    world: World
    chance: Random
    store: Safety
    clients: int
    steps: int
    faults: int | None
    kinds: Sequence[str]
    ledger: History = field(default_factory=History)
    happened: Counter[str] = field(default_factory=Counter)
    replaced: dict[str, str] = field(default_factory=dict)
    """The nodes that were replaced, by the guid that they had."""

    def configure_network(self) -> None:
        network, chance = self.world.network, self.chance
        network.delay = chance.choice(_DELAYS)
        network.jitter = network.delay * chance.random()
        network.bandwidth = chance.choice((1e8, 1e6))
        network.window = chance.choice((64 * KiB, 4 * KiB, 700))
        network.choppy = chance.choice((0.0, 0.1, 0.5))

    @property
    def names(self) -> list[str]:
        """The names of the clients' hosts."""
        return [f"c{number + 1}" for number in range(self.clients)]

    async def inject_faults(
        self,
        processes: Processes,
        *,
        within: float,
        longest: float,
        possible: Iterable[str],
        victim: str | None = None,
        mirror: str | None = None,
    ) -> None:
        """Inject faults, then heal everything and wait for all brokers that are not lost.

        `victim` is a node that may be lost, and `mirror` its mirror.
        """
        world, chance = self.world, self.chance
        kinds = tuple(kind for kind in possible if kind in self.kinds and self._bearable(kind))
        count = chance.choice((0, 1, 2, 4, 8)) if self.faults is None else self.faults
        injector = FaultInjector(world, processes, victim, mirror)
        if kinds:
            await injector.carry_out(
                plan(
                    chance,
                    count=count,
                    within=within,
                    longest=longest,
                    nodes=list(world.nodes),
                    clients=self.names,
                    kinds=kinds,
                )
            )
        self.happened.update(injector.happened)
        self.replaced.update(injector.replaced)
        world.network.heal()
        for node in world.nodes.values():
            node.disk.fail()
            node.disk.pace = 0.0002
            world.start(node)
        for node in world.living():
            await node.up.wait()

    def _bearable(self, kind: str) -> bool:
        """True if the guarantees hold in spite of this fault."""
        if kind == POWER:
            return self.store in {"memory", "synced"}
        return kind not in DISK or self.store != "memory"

    async def wait_for_work(self, processes: Processes) -> bool:
        """Wait until all programs have completed their steps. Return False if one does not."""
        if await until(lambda: not any(program.working for program in processes.living()), 300.0):
            return True
        busy = [program.name for program in processes.living() if program.working]
        self.ledger.problems.append(f"{busy} are not done; {self.world.loop.waiting()}")
        return False

    async def end(self, processes: Processes, nodes: Iterable[Node]) -> None:
        """Stop all programs and brokers, and report tasks that are left over."""
        programs, problems = processes.living(), self.ledger.problems
        for program in programs:
            program.stop()
        if not await until(lambda: all(program.ended.is_set() for program in programs), _ENDING):
            problems.append(f"not closed: {[program.name for program in programs if not program.ended.is_set()]}")
        for node in nodes:
            await self.world.stop(node)
        left = [task for task in self.world.loop.tasks() if task is not asyncio.current_task()]
        if left:
            problems.append(f"left over: {', '.join(task.get_name() for task in left)}")
