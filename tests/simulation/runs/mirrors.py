"""Chooses the mirrors of a simulated cluster, and compares their copies with the originals; cluster runs call it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from busway.cluster.mesh import Mesh
from busway.cluster.replication.compare import Records, mark_at
from busway.testing.simulation.world import Node
from tests.simulation.faults.plan import LOST, MIRROR
from tests.simulation.runs.scenario import Safety

_MIRRORED: Final = 0.4
"""The fraction of clusters with storage that have mirrors."""
_PATIENT: Final = 600.0
"""A `mirror_wait` in seconds that is longer than any absence of a mirror."""
_HASTY: Final = 1.0
"""A `mirror_wait` in seconds that often ends before a mirror is back."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirrors of a world, and the safety that they provide."""

    of: dict[str, str]
    """The mirrors, with the node that each one mirrors."""
    safety: Safety
    wait: float
    victim: str | None = None
    """A node that may lose its data, since its mirror has everything that it has acknowledged."""
    bears: tuple[str, ...] = ()
    """The faults that may affect the victim."""

    @property
    def mirror(self) -> str | None:
        """The mirror of the victim."""
        return next((mirror for mirror, origin in self.of.items() if origin == self.victim), None)

    def origins(self) -> list[str]:
        return list(dict.fromkeys(self.of.values()))


NO_MIRRORS: Final = Mirrors({}, "written", 5.0)


def choose_mirrors(chance: Random, names: Sequence[str], store: Safety, *, sure: bool) -> Mirrors:
    """Choose mirrors: none, one node of another, two of each other, or each of the next. `sure`: there is a victim."""
    if store == "memory" or (chance.random() >= _MIRRORED and not sure):
        return NO_MIRRORS
    one, two, *_ = some = chance.sample(names, len(names))
    of = chance.choice(({one: two}, {one: two, two: one}, dict(zip(some, (*some[1:], one), strict=True))))
    if chance.random() < 0.3 and not sure:
        return Mirrors(of, store, _HASTY)
    if chance.random() < 0.3 and not sure:
        return Mirrors(of, "mirrored", _HASTY)
    # Acknowledgements wait for a mirror, so a node that mirrors another one must not be lost.
    return Mirrors(of, "mirrored", _PATIENT, two, tuple(kind for kind in MIRROR if kind != LOST or two not in of))


def differing_copies(mirrors: Mirrors, nodes: Sequence[Node], stream: str) -> Iterator[str]:
    """Yield a problem for each copy that differs from its original."""
    there = {node.name: node for node in nodes}
    for mirror, origin in mirrors.of.items():
        if mirror in there and origin in there:
            right, copy = (
                there[origin].hub.streams.by_name[stream].log,
                _copy(there[mirror], there[origin].hub.guid, stream),
            )
            if copy is None:
                yield f"{mirror} has no copy of {origin}"
            elif (has := _marks(copy)) != (wanted := _marks(right)):
                same = sum(has[offset] == wanted[offset] for offset in set(has) & set(wanted))
                yield (
                    f"{mirror} has {len(has)} messages of {origin}, of which {same} are the same; "
                    f"{origin} has {len(wanted)}"
                )


def _copy(node: Node, guid: str, stream: str) -> Records | None:
    mesh = node.hub.peers.members
    assert isinstance(mesh, Mesh), "the node is in a cluster"
    found = mesh.replication.copies.get((guid, stream))
    return None if found is None else found.log


def _marks(log: Records) -> dict[int, bytes]:
    """Return the marks of the stored records. Original and copy may both have lost unacknowledged records."""
    return {offset: mark for offset in range(log.first, log.written) if (mark := mark_at(log, offset))}
