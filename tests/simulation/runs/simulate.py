"""`simulate` runs one seed in a world with brokers and clients, and returns a report."""

import gc
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from busway.testing.simulation.loop import Stuck
from busway.testing.simulation.world import World
from tests.simulation.faults.plan import KINDS, UNPOWERED
from tests.simulation.runs import cluster, single
from tests.simulation.runs.scenario import Safety, Scenario

_STORES: Final[tuple[Safety, ...]] = ("memory", "written", "synced")
_NODES: Final = (1, 1, 1, 3, 3, 3, 4, 5, 6, 7)
_EXPECTED: Final = (
    "no storage space",
    "the disk did not take it",
    "closing the subscription of 'brief/",
)
"""Expected errors in the log: failing disks, and an unsubscribe without an answer."""
_DAMAGED: Final = (
    "a bad record in",
    "records are missing in",
    "a bucket is missing in",
    "messages are lost; its mirror does not have them either",
)
"""Expected errors in the log after a host with unsynced data has lost power. The checker looks for lost messages."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run with one seed."""

    seed: int
    hash: str
    """A hash of all events: runs with the same hash are identical."""
    problems: tuple[str, ...]
    """Violated guarantees; empty if the run passed."""
    faults: Counter[str]
    """Faults that took effect, by kind."""
    seconds: float
    """Virtual seconds."""
    messages: int
    """Messages that programs received."""
    stored: int
    """Acknowledged durable messages."""
    resumed: int
    """Reconnects of clients."""
    turns: int
    """Callbacks of the event loop."""
    store: str
    nodes: int
    """The number of brokers."""
    lines: tuple[str, ...] = field(default=(), repr=False)
    """The trace, if requested."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.faults.items())) or "none"
        result = f"seed {self.seed}: {'passed' if self.ok else 'FAILED'}, {self.nodes} x {self.store}"
        lines = [f"{result}, {self.seconds:.0f} s, {self.messages} messages, {self.stored} stored"]
        lines += [f"  faults: {faults}", f"  hash: {self.hash}", *(f"  - {problem}" for problem in self.problems)]
        return "\n".join(lines)


def simulate(
    seed: int,
    *,
    nodes: int | Sequence[int] | None = None,
    clients: int | None = None,
    steps: int | None = None,
    faults: int | None = None,
    kinds: Sequence[str] = KINDS,
    lines: bool = False,
) -> Report:
    """Run real brokers and clients with faults in a simulated world, all chosen by the seed, and check the guarantees.

    `nodes` is the number of brokers, one or a cluster of up to seven, or a list of numbers from which the seed chooses.
    `clients` is the number of clients, `steps` the number of actions of each client, `faults` the number of faults, and
    `kinds` are the faults to choose from. The seed chooses arguments that are None. The same arguments give the same
    run in every process. With `lines` the report contains the trace.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"unknown faults {unknown}; the faults are {', '.join(KINDS)}")
    numbers = [nodes] if isinstance(nodes, int) else list(_NODES if nodes is None else nodes)
    if not numbers or min(numbers) < 1 or any(given is not None and given < 1 for given in (clients, steps)):
        raise ValueError("nodes, clients and steps must be at least 1")
    chance = Random(f"{seed}/world")
    store: Safety = chance.choice(_STORES)
    drawn = chance.choice(_NODES)
    count = drawn if drawn in numbers else numbers[seed % len(numbers)]
    with World(seed, lines=lines) as world:
        scenario = Scenario(
            world,
            chance,
            store,
            clients=clients or (3 if count == 1 else chance.randrange(3, 6)),
            steps=steps or (40 if count == 1 else 10),
            faults=faults,
            kinds=kinds,
        )
        ledger, problems = scenario.ledger, list[str]()
        try:
            problems += world.run(single.run(scenario) if count == 1 else cluster.run(scenario, count))
        except Stuck as error:
            problems.append(str(error))
        gc.collect(0)  # asyncio reports the unhandled error of a task when the task is collected
        problems += ledger.problems
        problems += [
            f"unexpected: {failure.get('message')}: {failure.get('exception')!r}" for failure in world.loop.failures
        ]
        expected = _EXPECTED + (_DAMAGED if scenario.happened[UNPOWERED] else ())
        problems += [
            f"logged by {who}: {record.getMessage()}"
            for who, record in world.logged.records
            if record.levelno >= logging.ERROR and not any(reason in record.getMessage() for reason in expected)
        ]
        return Report(
            seed,
            world.trace.hash(),
            tuple(problems),
            scenario.happened,
            world.loop.time(),
            ledger.messages(),
            len(ledger.stored),
            ledger.resumed,
            world.loop.turns,
            scenario.store,
            count,
            tuple(world.trace.lines or ()),
        )
