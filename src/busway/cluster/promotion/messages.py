"""Messages and calls between nodes about promotions. Their types check a received one."""

from typing import Annotated, Final

import msgspec

from busway.cluster.links.calls import Call
from busway.cluster.node import MOST_NODES
from busway.cluster.promotion.owners import Guid, Owner
from busway.cluster.protocol import CLAIM, OWNERS


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a node tells over a new link, and again after a change."""

    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=MOST_NODES)]
    """All promotions that the node knows."""
    serves: Annotated[tuple[Guid, ...], msgspec.Meta(max_length=MOST_NODES)]
    """The nodes whose streams it owns by a promotion, and replicates."""
    mirrors: Annotated[tuple[Guid, ...], msgspec.Meta(max_length=MOST_NODES)]
    """The mirrors of the node."""


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """Ask, before a promotion, what the other node knows of the node that is to be replaced."""

    guid: Guid


class Claimed(msgspec.Struct, array_like=True, frozen=True):
    """The answer to Claim."""

    linked: bool
    """The node that is to be replaced runs: there is a link to it."""
    promoting: bool
    """The other node is itself being promoted in its place."""
    ends: dict[str, int]
    """The ends of the copies that the other node has, by stream."""


REPORT: Final = Call[Report, None](OWNERS, "report of promotions", Report)
ASK: Final = Call[Claim, Claimed](CLAIM, "question before a promotion", Claim, Claimed)
