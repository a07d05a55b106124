"""Mirrors in a world of several nodes: who has a copy of whom, which of them may be lost, and whether copies are what they should be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from busway.cluster.mesh import Mesh
from busway.cluster.replication.compare import Records, mark_at
from busway.testing.simulation.faults.plan import LOST, MIRROR
from busway.testing.simulation.kit.world import Node
from busway.testing.simulation.runs.scenario import Safety

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_MIRRORED: Final = 0.4
"""How many of the clusters that store something have mirrors."""
_PATIENT: Final = 600.0
"""Seconds after which nobody waits for a mirror any longer; it is back before."""
_HASTY: Final = 1.0


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Who mirrors whom in one world, and what that is to be good for."""

    of: dict[str, str]
    """Mirrors, and the node of which each has a copy."""
    safety: Safety
    wait: float
    victim: str | None = None
    """A node that may lose what it has: all that it has acknowledged is at its mirror, too."""
    bears: tuple[str, ...] = ()
    """What may happen to it."""

    @property
    def heir(self) -> str | None:
        """The mirror of that one."""
        return next((mirror for mirror, origin in self.of.items() if origin == self.victim), None)

    def origins(self) -> list[str]:
        return list(dict.fromkeys(self.of.values()))


NOBODY: Final = Mirrors({}, "written", 5.0)


def draw(chance: Random, names: Sequence[str], store: Safety, *, sure: bool) -> Mirrors:
    """Who mirrors whom: nobody, one another one, two each other, or each the next one. `sure`: one may lose what it has."""
    if store == "memory" or (chance.random() >= _MIRRORED and not sure):
        return NOBODY
    one, two, *_ = some = chance.sample(names, len(names))
    of = chance.choice(({one: two}, {one: two, two: one}, dict(zip(some, (*some[1:], one), strict=True))))
    if chance.random() < 0.3 and not sure:
        return Mirrors(of, store, _HASTY)
    if chance.random() < 0.3 and not sure:
        return Mirrors(of, "mirrored", _HASTY)
    # Who has a copy of another one is waited for, so it must come back.
    return Mirrors(of, "mirrored", _PATIENT, two, tuple(kind for kind in MIRROR if kind != LOST or two not in of))


def unlike(mirrors: Mirrors, nodes: Sequence[Node], stream: str) -> Iterator[str]:
    """Copies that are not the same as what they are copies of."""
    there = {node.name: _hub(node) for node in nodes}
    for mirror, origin in mirrors.of.items():
        if mirror in there and origin in there:
            right, copy = there[origin].streams.by_name[stream].log, _copy(there[mirror], there[origin].guid, stream)
            if copy is None:
                yield f"{mirror} has no copy of {origin}"
            elif (has := _marks(copy)) != (wanted := _marks(right)):
                same = sum(has[offset] == wanted[offset] for offset in set(has) & set(wanted))
                yield f"{mirror} has {len(has)} messages of {origin}, of which {same} are the same; there are {len(wanted)}"


def _hub(node: Node) -> "Hub":
    if node.server is None:
        raise RuntimeError(f"{node.name} does not run")
    return node.server._running()  # noqa: SLF001, who looks into nodes has to open them


def _copy(hub: "Hub", guid: str, stream: str) -> Records | None:
    assert isinstance(hub.peers.members, Mesh), "it is one of several"
    found = hub.peers.members.mirroring.copies.get((guid, stream))
    return None if found is None else found.log


def _marks(log: Records) -> dict[int, bytes]:
    """Of what is there: both may have lost what nobody had acknowledged."""
    return {offset: mark for offset in range(log.first, log.written) if (mark := mark_at(log, offset))}
