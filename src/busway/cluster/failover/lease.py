"""The lease on the channels of a node: held by the node itself, or by its mirror while most nodes miss the node.

`ownership` has one Lease per side and passes the time. A node keeps the lease while it is linked to half of the
cluster, counting itself. Its mirror takes it when more than half, counting itself, miss the node and vote for the mirror for
twice as long as an isolated node keeps it. So at most one side holds the lease, provided that all nodes notice lost
links and votes within `patience` of each other and clocks drift little. Otherwise the lease is only handed over. With
two nodes the mirror never takes over, since a lost node looks like a lost link. `quorum` has the counted nodes.
"""

from busway.cluster.config import PATIENCE


class Lease:
    """One side of a lease. `owner`: the side of the node itself, not of its mirror."""

    def __init__(self, *, owner: bool, has: bool, patience: float = PATIENCE) -> None:
        self._owner = owner
        self._patience = patience
        self.has = has
        self._lonely: float | None = None
        """Since when too few are here."""
        self._free: float | None = None
        """Since when most say that the other side is gone."""
        self._given = False
        """The other side has said that it stops."""
        self._seen: float | None = None

    def look(self, now: float, *, linked: int, denied: int, known: int, other: bool) -> bool:
        """How many nodes this one is linked to; how many have no link to the other side, with this one; how many there are in the cluster.

        `other`: this one is linked to the other side. Whether `has` has changed.
        """
        before = self.has
        if self.has and not self.sure(now):
            self.has, self._given, self._free = False, False, None  # it has slept, and nobody knows what the others did
        self._seen = now
        here = self.enough(linked, known)
        self._lonely = None if here else now if self._lonely is None else self._lonely
        gone = here and not other and (2 * denied >= known if self._owner else 2 * denied > known)
        self._free = None if not gone else now if self._free is None else self._free
        if self.has and self._lonely is not None and now >= self._lonely + self._patience:
            self.has = self._given = False
        elif not self.has and self._free is not None and (self._given or now >= self._free + 2 * self._patience):
            self.has = True
        return self.has is not before

    def deadline(self) -> float | None:
        """When look() may say something else."""
        if self.has:
            return None if self._lonely is None else self._lonely + self._patience
        return None if self._free is None else self._free + 2 * self._patience

    def sure(self, now: float) -> bool:
        """Whether it was looked at so lately that nobody else can have taken the turn since."""
        return self._seen is None or now - self._seen <= 2 * self._patience

    def enough(self, linked: int, known: int) -> bool:
        """Whether so many links are enough to have the turn."""
        return 2 * (linked + 1) >= known if self._owner else 2 * (linked + 1) > known

    def slept(self) -> None:
        """It has not looked for long: what it heard of the others is old, so it begins to wait anew. What it has is judged by look()."""
        if not self.has:
            self._free, self._given = None, False

    def given(self) -> None:
        """The other side has said that it stops: nobody has to wait until it must have noticed something."""
        self._given = True

    def hand_over(self) -> bool:
        """The mirror is linked to the node, or the node stops: whether it had the turn. From now on it hasn't, and tells the other side."""
        had, self.has = self.has, False
        self._free, self._given = None, False  # it is here
        return had

    def handed_over(self) -> None:
        """The mirror says that it hasn't the turn."""
        self.has = True
        self._lonely = None
