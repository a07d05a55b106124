"""A world of one broker: what happens in it, and what has to be true in the end."""

import asyncio
from random import Random

from busway.settings import Settings
from busway.testing.simulation.checker.final_read import NAME, Auditor
from busway.testing.simulation.checker.single import check
from busway.testing.simulation.faults.plan import DISK, SINGLE
from busway.testing.simulation.runs.scenario import GAPS, HOUR, Scenario
from busway.testing.simulation.workload.client import ROLES, Program
from busway.testing.simulation.workload.history import LEASE
from busway.testing.simulation.workload.processes import Processes


async def run(play: Scenario) -> list[str]:
    """Broken promises, besides those that the ledger has."""
    world, chance, ledger, store = play.world, play.chance, play.ledger, play.store
    play.lay_network()
    settings = Settings(
        heartbeat=chance.choice((1.0, 3.0, 15.0)), grace=chance.choice((0.5, 3.0, 10.0)), drain=2.0, patience=10.0
    )
    node = world.add_node("b1", settings, stores=store != "memory", skew=chance.randrange(-HOUR, HOUR))
    world.start(node)
    await node.up.wait()
    stream = "default" if store == "memory" else "orders"
    gap = chance.choice(GAPS)

    def make(client: str, name: str, own: Random, steps: int) -> Program:
        return Program(
            name,
            [node.url],
            ledger,
            own,
            stream=stream,
            store=None if store == "memory" else {"safety": store},
            roles=tuple(role for role in ROLES if chance.random() < 0.6),
            steps=steps,
            gap=gap,
            dialled=lambda: world.network.dialled.get(client, 0.0),
        )

    cast = Processes(world, make, play.steps)
    for client in play.names:
        cast.start(client, play.steps)
    await play.go_wrong(cast, within=play.steps * gap, longest=settings.heartbeat * 4, possible=SINGLE)
    if not await play.worked(cast):
        return []
    await asyncio.sleep(settings.heartbeat * 4 + settings.grace + LEASE)
    auditor = Auditor(
        [node.url], ledger, cast.living(), stream, lambda: node.server.stats()["connections"] if node.server else 0
    )
    world.launch(NAME, NAME, auditor.main)
    await auditor.done.wait()
    await play.end(cast, [node])
    found = auditor.found
    found.living = [program.name for program in cast.living()]
    found.calm = not play.happened
    found.refused = any(play.happened[kind] for kind in DISK)
    found.begun, found.lasting = node.starts, node.stores
    return list(check(ledger, found))
