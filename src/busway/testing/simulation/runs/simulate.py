"""`busway.testing.simulate`: one seed, one world with brokers and clients, one run, one report."""

import gc
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from busway.testing.simulation.faults.plan import KINDS, UNPOWERED
from busway.testing.simulation.kit.loop import Stuck
from busway.testing.simulation.kit.world import World
from busway.testing.simulation.runs import cluster, single
from busway.testing.simulation.runs.scenario import Safety, Scenario

_STORES: Final[tuple[Safety, ...]] = ("memory", "written", "synced")
_NODES: Final = (1, 1, 1, 3, 3, 3, 4, 5, 6, 7)
_EXPECTED: Final = (
    "no storage space",
    "the disk did not take it",
    "closing the subscription of 'brief/",
)
"""What has to be told: failing disks, an unsubscribe that nobody answers."""
_DAMAGED: Final = (
    "a bad record in",
    "records are missing in",
    "a bucket is missing in",
    "messages are lost; its mirror does not have them either",
)
"""What a host without power has to tell that had more written than synced. Its mirror gives back what it has; what was acknowledged is looked for elsewhere."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one seed."""

    seed: int
    hash: str
    """Of everything that happened: two runs with the same are the same."""
    problems: tuple[str, ...]
    """Broken promises; none: all is well."""
    faults: Counter[str]
    """What really went wrong, by kind."""
    seconds: float
    """Virtual ones."""
    messages: int
    """That programs got."""
    stored: int
    """Messages whose storing was acknowledged."""
    resumed: int
    """How often a client came back."""
    turns: int
    """Callbacks of the loop."""
    store: str
    nodes: int
    """Brokers."""
    lines: tuple[str, ...] = field(default=(), repr=False)
    """What happened, if it was asked for."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.faults.items())) or "none"
        lines = [
            f"seed {self.seed}: {'all is well' if self.ok else 'FAILED'}, {self.nodes} x {self.store}, {self.seconds:.0f} s, {self.messages} messages, {self.stored} stored"
        ]
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
    """Run real brokers and clients in a simulated world with faults, all chosen by the seed, and check what they promised.

    `nodes` is how many brokers there are, one or a cluster of up to seven, or the numbers among which the seed chooses, `clients` how many clients, `steps` how many things each of them does,
    `faults` how often something goes wrong (all chosen if not given) and `kinds` what. The same arguments give the same run, also in another process.
    With `lines` the report tells what happened.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"unknown faults {unknown}; there are {', '.join(KINDS)}")
    numbers = [nodes] if isinstance(nodes, int) else list(_NODES if nodes is None else nodes)
    if not numbers or min(numbers) < 1 or any(given is not None and given < 1 for given in (clients, steps)):
        raise ValueError("nodes, clients and steps are at least 1")
    chance = Random(f"{seed}/world")  # noqa: S311, it is to be the same again
    store: Safety = chance.choice(_STORES)
    drawn = chance.choice(_NODES)
    count = drawn if drawn in numbers else numbers[seed % len(numbers)]
    with World(seed, lines=lines) as world:
        play = Scenario(
            world,
            chance,
            store,
            clients=clients or (3 if count == 1 else chance.randrange(3, 6)),
            steps=steps or (40 if count == 1 else 10),
            faults=faults,
            kinds=kinds,
        )
        ledger, problems = play.ledger, list[str]()
        try:
            problems += world.run(single.run(play) if count == 1 else cluster.run(play, count))
        except Stuck as error:
            problems.append(str(error))
        gc.collect(0)  # a task that failed where nobody waits for it is told when it goes
        problems += ledger.problems
        problems += [
            f"unexpected: {failure.get('message')}: {failure.get('exception')!r}" for failure in world.loop.failures
        ]
        expected = _EXPECTED + (_DAMAGED if play.happened[UNPOWERED] else ())
        problems += [
            f"logged by {who}: {record.getMessage()}"
            for who, record in world.logged.records
            if record.levelno >= logging.ERROR and not any(reason in record.getMessage() for reason in expected)
        ]
        return Report(
            seed,
            world.trace.hash(),
            tuple(problems),
            play.happened,
            world.loop.time(),
            ledger.messages(),
            len(ledger.stored),
            ledger.resumed,
            world.loop.turns,
            play.store,
            count,
            tuple(world.trace.lines or ()),
        )
