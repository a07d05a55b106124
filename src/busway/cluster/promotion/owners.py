"""Who owns the streams of each node, and the rule by which nodes agree on it.

A node owns its own streams, at epoch 1. A promotion makes a mirror the owner of its copies, at a higher epoch. Nodes tell
each other all promotions that they know, and the highest epoch counts. `promotion` uses this machine.
"""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from busway.cluster.replication.messages import Have

Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """One promotion: since this epoch a node owns the streams that the node `guid` made."""

    guid: Guid
    epoch: Epoch
    owner: Guid
    ends: dict[str, Have] = {}
    """The records that the owner has of each stream. It adds none, so all others were never mirrored."""


class Owners:
    """The promotions that one node knows."""

    def __init__(self, me: str, known: Iterable[Owner] = ()) -> None:
        self._me = me
        self._known: dict[str, Owner] = {}
        for owner in known:
            self.learn(owner)

    @property
    def known(self) -> tuple[Owner, ...]:
        return tuple(self._known.values())

    def get(self, guid: str) -> Owner:
        """The owner of the streams of a node."""
        return self._known.get(guid) or Owner(guid, 1, guid)

    def next_epoch(self, guid: str) -> int:
        """The epoch of the next promotion."""
        return self.get(guid).epoch + 1

    def of(self, owner: str) -> list[str]:
        """The other nodes whose streams a node owns."""
        return [one.guid for one in self._known.values() if one.owner == owner != one.guid]

    @property
    def replaced(self) -> bool:
        """Whether another node owns the streams of this one."""
        return self.get(self._me).owner != self._me

    def learn(self, owner: Owner) -> bool:
        """Accept a promotion unless a higher epoch is known. Of two with the same epoch all nodes choose the same."""
        known = self.get(owner.guid)
        if (owner.epoch, owner.owner) <= (known.epoch, known.owner):
            return False
        self._known[owner.guid] = owner
        return True
