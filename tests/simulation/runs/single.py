"""Runs a world with one broker, and checks it in the end; `simulate()` calls it."""

import asyncio
from random import Random

from busway.settings import Settings
from tests.simulation.checker.final_read import NAME, Auditor
from tests.simulation.checker.single import check
from tests.simulation.faults.plan import DISK, SINGLE
from tests.simulation.runs.scenario import GAPS, HOUR, Scenario
from tests.simulation.workload.client import ROLES, Program
from tests.simulation.workload.history import LEASE
from tests.simulation.workload.processes import Processes


async def run(scenario: Scenario) -> list[str]:
    """Run the scenario. Return violated guarantees besides the problems in the history."""
    world, chance, ledger, store = scenario.world, scenario.chance, scenario.ledger, scenario.store
    scenario.configure_network()
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

    processes = Processes(world, make, scenario.steps)
    for client in scenario.names:
        processes.start(client, scenario.steps)
    await scenario.inject_faults(
        processes, within=scenario.steps * gap, longest=settings.heartbeat * 4, possible=SINGLE
    )
    if not await scenario.wait_for_work(processes):
        return []
    await asyncio.sleep(settings.heartbeat * 4 + settings.grace + LEASE)
    auditor = Auditor(
        [node.url], ledger, processes.living(), stream, lambda: node.server.stats()["connections"] if node.server else 0
    )
    world.launch(NAME, NAME, auditor.main)
    await auditor.done.wait()
    await scenario.end(processes, [node])
    state = auditor.state
    state.living = [program.name for program in processes.living()]
    state.calm = not scenario.happened
    state.refused = any(scenario.happened[kind] for kind in DISK)
    state.begun, state.lasting = node.starts, node.stores
    return list(check(ledger, state))
