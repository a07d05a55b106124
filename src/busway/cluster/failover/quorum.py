"""The set of nodes that a majority is computed over; `ownership` calls this module.

A node counts from its first link until it announces its stop or is forgotten. A new or restarted node counts once
enough counted nodes are linked without it. Otherwise the smaller side of a partition could grow by new nodes until both sides
had a majority. For the same reason a node and its mirror exchange their counted nodes.
"""

from collections.abc import Collection, Iterable, Mapping

from busway.cluster.node import MOST_NODES


class Quorum:
    """The counted nodes, with this one. `most`: more than half must be linked; otherwise half is enough."""

    def __init__(self, me: str, known: Iterable[str] = (), *, most: bool) -> None:
        self._most = most
        self.met = {me, *known}
        """Those that count by what this one has seen itself: what it tells others."""
        self._told: dict[str, set[str]] = {}
        """Who counts for others, by what they said last."""
        self._kept = {me}
        self._here = {me: 0}
        """Those that are linked, and their incarnations."""
        self._late: set[str] = set()
        """Those of them that do not count yet: neither as here, nor as missing."""
        self._taken: dict[str, int] = {}
        """The incarnations that were found to count."""

    @property
    def known(self) -> set[str]:
        """All that count, or did before they came late."""
        return self.met.union(*(nodes for guid, nodes in self._told.items() if guid not in self._late))

    @property
    def nodes(self) -> set[str]:
        """Those that count now, here or not."""
        return self.known - self._late

    @property
    def here(self) -> int:
        """How many of them are here, with this one."""
        return self.counted(self._here)

    @property
    def enough(self) -> bool:
        return 2 * self.here > len(self.nodes) if self._most else 2 * self.here >= len(self.nodes)

    def counted(self, guids: Iterable[str]) -> int:
        """How many of these count now."""
        return len(self.nodes.intersection(guids))

    def came(self, guid: str, incarnation: int, *, anew: bool) -> None:
        """There is a link to it. `anew`: it had stopped before, of which this one need not have heard, and others do not count it since."""
        self._here[guid] = incarnation
        new = guid not in self.known or (anew and self._taken.get(guid) != incarnation)
        if new and guid not in self._kept:
            self._late.add(guid)
        self._settle()

    def went(self, guid: str) -> None:
        """Its link has ended."""
        self._here.pop(guid, None)
        if guid in self._late:
            self._late.discard(guid)
            self._told.pop(guid, None)

    def keep(self, guid: str) -> None:
        """It counts from now on, whatever it says: this one judges about it, and when it comes back it counts itself."""
        if guid not in self._kept:
            self._kept.add(guid)
            self.met.add(guid)
            self._late.discard(guid)
            self._settle()

    def told(self, guid: str, nodes: Iterable[str]) -> None:
        """These count for another node."""
        self._told[guid] = set(nodes)
        self._settle()

    def left(self, guid: str) -> None:
        """It stops, or was not there for long."""
        self.went(guid)
        if guid in self._kept:
            return
        self.met.discard(guid)
        self._taken.pop(guid, None)
        self._told.pop(guid, None)
        for nodes in self._told.values():
            nodes.discard(guid)
        self._settle()

    def _settle(self) -> None:
        if self.enough:
            self.met |= self._late
            self._late.clear()
            self._taken.update(self._here)


class Witness:
    """The take-overs that one node has seen."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    @property
    def stood(self) -> tuple[tuple[str, str], ...]:
        """Nodes that are missed here, and who handed out for each last."""
        return tuple(sorted(self._last.items()))[:MOST_NODES]

    def saw(self, hander: str, hands: Iterable[str], here: Collection[str]) -> None:
        """A node says whose channels it hands out of. `here`: the nodes that are linked; for those nobody needs to."""
        for guid in hands:
            if guid != hander and guid not in here:
                self._last[guid] = hander

    def came(self, guid: str) -> None:
        """That node is here: it may hand out itself, also of what this one does not see."""
        self._last.pop(guid, None)


def undisputed(guid: str, me: str, told: Mapping[str, Mapping[str, str]], nodes: Collection[str]) -> bool:
    """Whether enough know of nobody who handed out for a node after this one, `me`.

    `told`: what others have seen, by their guids. `nodes`: all that counted then or do now; one that was not seen for long may be with the
    node, so it counts on.
    """
    agree = {me, *(one for one, stood in told.items() if stood.get(guid) == me)}
    return 2 * len(agree.intersection(nodes)) > len(nodes)
