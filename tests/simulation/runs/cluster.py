"""Runs a world with a cluster of several nodes, and checks it in the end; `simulate()` calls it."""

import asyncio
from random import Random
from typing import Final

import busway
from busway.errors import Rejected
from busway.settings import Settings
from busway.testing.simulation.world import PORT, SCHEME, Node, World
from tests.simulation.checker.cluster import RunFacts, agree
from tests.simulation.checker.epochs import Epochs, owners_of
from tests.simulation.checker.final_read import until
from tests.simulation.checker.final_read_cluster import NAME, Survey, missing_links, wrong_interest
from tests.simulation.faults.plan import DISK, KINDS, LOSSES, MIRROR
from tests.simulation.runs.mirrors import Mirrors, choose_mirrors, differing_copies
from tests.simulation.runs.scenario import GAPS, HOUR, Scenario
from tests.simulation.workload.client import RETRY
from tests.simulation.workload.cluster_client import Member, roles
from tests.simulation.workload.processes import Processes

LATE: Final = "late node"
SKEW: Final = "clocks apart"
"""Counted if the clocks of two nodes differ by an hour or more."""
UNEVEN: Final = "uneven ways"
MIRRORS: Final = "mirrors"
_LONGEST: Final = 0.3
"""The delay of the longest path in seconds."""
_LATE_NODES: Final = 0.25
_ROAMING: Final = 0.5
_FAR: Final = 120.0
"""Seconds within which nodes link after all faults are healed."""


async def run(scenario: Scenario, count: int) -> list[str]:
    """Run the scenario. Return violated guarantees besides the problems in the history."""
    with Epochs(scenario.world) as epochs:
        return [*await _run(scenario, count), *epochs.problems()]


async def _run(scenario: Scenario, count: int) -> list[str]:
    world, chance, ledger = scenario.world, scenario.chance, scenario.ledger
    scenario.configure_network()
    world.network.spread = min(chance.choice((1.0, 3.0, 30.0)), _LONGEST / world.network.delay)
    if world.network.spread > 1.0:
        scenario.happened[UNEVEN] += 1
    settings = Settings(
        heartbeat=chance.choice((1.0, 3.0, 6.0)), grace=chance.choice((0.5, 3.0, 10.0)), drain=2.0, patience=10.0
    )
    stream = "default" if scenario.store == "memory" else "orders"
    names = [f"b{number + 1}" for number in range(count)]
    mirrors = choose_mirrors(world.random("mirrors"), names, scenario.store, sure=set(scenario.kinds) <= set(MIRROR))
    if mirrors.of:
        scenario.store = mirrors.safety
        scenario.happened[MIRRORS] += 1
    nodes = _nodes(scenario, count, settings, mirrors)
    if scenario.store != "memory":
        await _create_streams(scenario, nodes, stream, mirrors)
    gap = chance.choice(GAPS)
    late = chance.choice(nodes) if chance.random() < _LATE_NODES else None
    if late is not None:
        await world.stop(late)
        world.loop.call_later(scenario.steps * gap * chance.random(), world.start, late)
        scenario.happened[LATE] += 1
    for node in nodes:
        if node is not late:
            world.start(node)
    everybody: list[Member] = []

    def make(client: str, name: str, own: Random, steps: int) -> Member:
        urls = [node.url for node in nodes]
        first = chance.randrange(count)
        roams = chance.random() < _ROAMING or mirrors.victim is not None  # with one address it may know only the victim
        urls = urls[first:] + urls[:first] if roams else [urls[first]]
        member = Member(
            client,
            name,
            urls,
            ledger,
            own,
            others=scenario.names,
            stream=stream,
            roles=roles(chance),
            steps=steps,
            gap=gap,
            dialled=lambda: world.network.dialled.get(client, 0.0),
        )
        everybody.append(member)
        return member

    processes = Processes(world, make, scenario.steps, apart=HOUR)
    for client in scenario.names:
        processes.start(client, scenario.steps)
    possible = [kind for kind in KINDS if kind not in MIRROR or kind in mirrors.bears]
    await scenario.inject_faults(
        processes,
        within=scenario.steps * gap,
        longest=settings.heartbeat * 4,
        possible=possible,
        victim=mirrors.victim,
        mirror=mirrors.mirror,
    )
    lost, nodes = [node for node in nodes if node.lost], world.living()
    gone = {node.name: node.guid for node in lost} | {
        f"{name} before": guid for guid, name in scenario.replaced.items()
    }
    if not await scenario.wait_for_work(processes):
        return []
    if not await until(lambda: all(node.serves for node in nodes) and not missing_links(nodes), _FAR):
        return [f"{node.name} does not serve" for node in nodes if not node.serves] or missing_links(nodes)
    for node in nodes:
        world.started(node)
    # A program that dials a node without power waits for a timeout. The survey reports programs that never connect.
    await until(lambda: all(program.connected for program in processes.living()), _FAR)
    await asyncio.sleep(settings.heartbeat * 4 + settings.grace)
    problems = [*missing_links(nodes), *wrong_interest(nodes), *owners_of(nodes)]
    if not await until(lambda: not list(differing_copies(mirrors, nodes, stream)), _FAR):
        problems += differing_copies(mirrors, nodes, stream)
    members = [program for program in processes.living() if isinstance(program, Member)]
    world.network.delay = world.network.jitter = 0.001  # for the survey, which inspects all nodes at the same time
    world.network.spread = 1.0
    survey = Survey(nodes, ledger, members, stream, gone)
    world.launch(NAME, NAME, survey.main)
    await survey.done.wait()
    for node in nodes:
        problems += _errors(node)
    await scenario.end(processes, nodes)
    victims = sum(scenario.happened[kind] for kind in LOSSES)
    how = RunFacts(
        living=[member.name for member in members],
        readers=[member.name for member in members if "read" in member.roles],
        single_broker=frozenset(member.name for member in everybody if _used_one_broker(member, world)),
        orphans=frozenset(member.name for member in everybody if _hosts(member, world) & {node.name for node in lost}),
        calm=not set(scenario.happened) - {LATE, SKEW, UNEVEN, MIRRORS},
        refused=any(scenario.happened[kind] for kind in DISK),
        forgetful=frozenset(guid for name in (mirrors.victim,) if name and victims for guid in world.nodes[name].guids),
        forgotten=scenario.store == "memory" and any(node.starts > 1 for node in nodes),
    )
    return [*problems, *agree(ledger, survey.seen, how)]


async def _create_streams(scenario: Scenario, nodes: list[Node], stream: str, mirrors: Mirrors) -> None:
    """Create the stream at all nodes before the programs start."""
    world, founded = scenario.world, asyncio.Event()

    async def create() -> None:
        await asyncio.gather(*(at(node) for node in nodes))
        founded.set()

    async def at(node: Node) -> None:
        async with busway.connect(node.url, name="founder") as bus:
            while True:
                try:
                    if scenario.store == "mirrored" and node.name not in mirrors.origins():
                        await bus.stream(stream)  # the nodes with a mirror create it
                    else:
                        await bus.create_stream(stream, topics=["orders/**"], safety=scenario.store)
                    break
                except Rejected:  # the mirror, or the node with a mirror, is not linked yet
                    await asyncio.sleep(RETRY)

    for node in nodes:
        world.start(node)
    for node in nodes:
        await node.up.wait()
    world.launch("founder", "founder", create)
    await founded.wait()


def _nodes(scenario: Scenario, count: int, settings: Settings, mirrors: Mirrors) -> list[Node]:
    """Add the nodes. The server list of each one contains some of the others."""
    chance = scenario.chance
    names = [f"b{number + 1}" for number in range(count)]
    urls = [f"{SCHEME}://{name}:{PORT}" for name in names]
    knows = chance.choice(("all", "first", "next"))
    if mirrors.victim is not None:
        knows = "all"  # a node whose list contains only the lost node would never find another one
    key = chance.choice((None, "secret"))
    skews = [chance.randrange(-HOUR, HOUR) for _ in names]
    if max(skews) - min(skews) >= HOUR:
        scenario.happened[SKEW] += 1
    nodes = []
    for place, name in enumerate(names):
        servers = {"all": urls, "first": urls[:1], "next": [urls[(place + 1) % count]]}[knows]
        cluster = busway.Cluster(
            name="sim", servers=servers, key=key, mirror_of=mirrors.of.get(name), mirror_wait=mirrors.wait
        )
        nodes.append(
            scenario.world.add_node(
                name, settings, stores=scenario.store != "memory", skew=skews[place], cluster=cluster
            )
        )
    return nodes


def _hosts(member: Member, world: World) -> set[str]:
    """Return the nodes that a program has sent data to."""
    return {name.partition("#")[0] for name in world.network.reached.get(member.name, {})}


def _used_one_broker(member: Member, world: World) -> bool:
    """True if a program has published to one broker only. A broker without storage is another one after a restart."""
    processes = world.network.reached.get(member.name, {})
    hosts = [name.partition("#")[0] for name in processes]
    return len({host if world.nodes[host].stores else name for host, name in zip(hosts, processes, strict=True)}) == 1


def _errors(node: Node) -> list[str]:
    """Return the errors and faults that a node has counted."""
    node.collect_errors()
    return [f"{node.name} counted {count} {what}" for what, count in node.error_counts.items() if count]
