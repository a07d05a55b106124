"""A world of several nodes: how they know each other, what happens, and what has to be true in the end."""

import asyncio
from random import Random
from typing import Final

import busway
from busway.errors import Rejected
from busway.settings import Settings
from busway.testing.simulation.checker.cluster import Circumstances, agree
from busway.testing.simulation.checker.final_read import until
from busway.testing.simulation.checker.final_read_cluster import NAME, Survey, strangers, unheard
from busway.testing.simulation.faults.plan import DISK, KINDS, LOSSES, MIRROR
from busway.testing.simulation.kit.world import PORT, SCHEME, Node, World
from busway.testing.simulation.runs.mirrors import Mirrors, draw, unlike
from busway.testing.simulation.runs.scenario import GAPS, HOUR, Scenario
from busway.testing.simulation.workload.client import AGAIN
from busway.testing.simulation.workload.cluster_client import Member, roles
from busway.testing.simulation.workload.processes import Processes

LATE: Final = "late node"
SKEW: Final = "clocks apart"
"""An hour or more between the clocks of two nodes."""
UNEVEN: Final = "uneven ways"
MIRRORS: Final = "mirrors"
_LONGEST: Final = 0.3
"""Seconds that the longest way takes."""
_LATE_NODES: Final = 0.25
_ROAMING: Final = 0.5
_FAR: Final = 120.0
"""Seconds in which nodes find each other, whatever was before."""


async def run(play: Scenario, count: int) -> list[str]:
    """Broken promises, besides those that the ledger has."""
    world, chance, ledger = play.world, play.chance, play.ledger
    play.lay_network()
    world.network.spread = min(chance.choice((1.0, 3.0, 30.0)), _LONGEST / world.network.delay)
    if world.network.spread > 1.0:
        play.happened[UNEVEN] += 1
    settings = Settings(
        heartbeat=chance.choice((1.0, 3.0, 6.0)), grace=chance.choice((0.5, 3.0, 10.0)), drain=2.0, patience=10.0
    )
    stream = "default" if play.store == "memory" else "orders"
    names = [f"b{number + 1}" for number in range(count)]
    mirrors = draw(world.random("mirrors"), names, play.store, sure=set(play.kinds) <= set(MIRROR))
    if mirrors.of:
        play.store = mirrors.safety
        play.happened[MIRRORS] += 1
    nodes = _nodes(play, count, settings, mirrors)
    if play.store != "memory":
        await _found(play, nodes, stream, mirrors)
    gap = chance.choice(GAPS)
    late = chance.choice(nodes) if chance.random() < _LATE_NODES else None
    if late is not None:
        await world.stop(late)
        world.loop.call_later(play.steps * gap * chance.random(), world.start, late)
        play.happened[LATE] += 1
    for node in nodes:
        if node is not late:
            world.start(node)
    everybody: list[Member] = []

    def make(client: str, name: str, own: Random, steps: int) -> Member:
        urls = [node.url for node in nodes]
        first = chance.randrange(count)
        roams = chance.random() < _ROAMING or mirrors.victim is not None  # it may never have known of others than that
        urls = urls[first:] + urls[:first] if roams else [urls[first]]
        member = Member(
            client,
            name,
            urls,
            ledger,
            own,
            others=play.names,
            stream=stream,
            roles=roles(chance),
            steps=steps,
            gap=gap,
            dialled=lambda: world.network.dialled.get(client, 0.0),
        )
        everybody.append(member)
        return member

    cast = Processes(world, make, play.steps, apart=HOUR)
    for client in play.names:
        cast.start(client, play.steps)
    possible = [kind for kind in KINDS if kind not in MIRROR or kind in mirrors.bears]
    await play.go_wrong(
        cast,
        within=play.steps * gap,
        longest=settings.heartbeat * 4,
        possible=possible,
        victim=mirrors.victim,
        heir=mirrors.heir,
    )
    lost, nodes = [node for node in nodes if node.lost], world.living()
    if not await play.worked(cast):
        return []
    if not await until(lambda: not strangers(nodes), _FAR):
        return strangers(nodes)
    # One that dialled a node without power may wait for that as long as an attempt lasts; the survey tells of who never comes.
    await until(lambda: all(program.at_home for program in cast.living()), _FAR)
    await asyncio.sleep(settings.heartbeat * 4 + settings.grace)
    problems = [*strangers(nodes), *unheard(nodes)]
    if not await until(lambda: not list(unlike(mirrors, nodes, stream)), _FAR):
        problems += unlike(mirrors, nodes, stream)
    members = [program for program in cast.living() if isinstance(program, Member)]
    world.network.delay = world.network.jitter = 0.001  # of who comes last; it looks at all nodes at the same time
    world.network.spread = 1.0
    survey = Survey(nodes, ledger, members, stream, lost)
    world.launch(NAME, NAME, survey.main)
    await survey.done.wait()
    for node in nodes:
        problems += _counted(node)
    await play.end(cast, nodes)
    victims = sum(play.happened[kind] for kind in LOSSES)
    how = Circumstances(
        living=[member.name for member in members],
        readers=[member.name for member in members if "read" in member.roles],
        settled=frozenset(member.name for member in everybody if _settled(member, world)),
        orphans=frozenset(member.name for member in everybody if _hosts(member, world) & {node.name for node in lost}),
        calm=not set(play.happened) - {LATE, SKEW, UNEVEN, MIRRORS},
        refused=any(play.happened[kind] for kind in DISK),
        forgetful=frozenset(world.nodes[name].guid for name in (mirrors.victim,) if name and victims),
        forgotten=play.store == "memory" and any(node.starts > 1 for node in nodes),
    )
    return [*problems, *agree(ledger, survey.seen, how)]


async def _found(play: Scenario, nodes: list[Node], stream: str, mirrors: Mirrors) -> None:
    """Every node has the stream before anybody comes."""
    world, founded = play.world, asyncio.Event()

    async def create() -> None:
        await asyncio.gather(*(at(node) for node in nodes))
        founded.set()

    async def at(node: Node) -> None:
        async with busway.connect(node.url, name="founder") as bus:
            while True:
                try:
                    if play.store == "mirrored" and node.name not in mirrors.origins():
                        await bus.stream(stream)  # it is made by those who have a mirror
                    else:
                        await bus.create_stream(stream, topics=["orders/**"], safety=play.store)
                    break
                except Rejected:  # the mirror, or who has one, is not here yet
                    await asyncio.sleep(AGAIN)

    for node in nodes:
        world.start(node)
    for node in nodes:
        await node.up.wait()
    world.launch("founder", "founder", create)
    await founded.wait()


def _nodes(play: Scenario, count: int, settings: Settings, mirrors: Mirrors) -> list[Node]:
    """Places for nodes; each knows some of the others by its list."""
    chance = play.chance
    names = [f"b{number + 1}" for number in range(count)]
    urls = [f"{SCHEME}://{name}:{PORT}" for name in names]
    knows = chance.choice(("all", "first", "next"))
    if mirrors.victim is not None:
        knows = "all"  # who knows only one that is lost for good never hears of another
    key = chance.choice((None, "secret"))
    skews = [chance.randrange(-HOUR, HOUR) for _ in names]
    if max(skews) - min(skews) >= HOUR:
        play.happened[SKEW] += 1
    nodes = []
    for place, name in enumerate(names):
        servers = {"all": urls, "first": urls[:1], "next": [urls[(place + 1) % count]]}[knows]
        cluster = busway.Cluster(
            name="sim", servers=servers, key=key, mirror_of=mirrors.of.get(name), mirror_wait=mirrors.wait
        )
        nodes.append(
            play.world.add_node(name, settings, stores=play.store != "memory", skew=skews[place], cluster=cluster)
        )
    return nodes


def _hosts(member: Member, world: World) -> set[str]:
    """The nodes that it has said something to."""
    return {name.partition("#")[0] for name in world.network.reached.get(member.name, {})}


def _settled(member: Member, world: World) -> bool:
    """Whether what it published went to one broker. One that stores nothing is another one when it is started again."""
    processes = world.network.reached.get(member.name, {})
    hosts = [name.partition("#")[0] for name in processes]
    return len({host if world.nodes[host].stores else name for host, name in zip(hosts, processes, strict=True)}) == 1


def _counted(node: Node) -> list[str]:
    """What a node counted that must not be."""
    node.note()
    return [f"{node.name} counted {count} {what}" for what, count in node.counted.items() if count]
