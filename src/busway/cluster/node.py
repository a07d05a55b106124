"""A broker as the others of its cluster know it.

Values only. What comes from another node is checked here, before anybody believes it.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from busway.settings import KiB, MiB
from busway.transport.address import parse

MOST_ADDRESSES: Final = 8
MOST_NODES: Final = 1000
"""That one node may tell of; a mesh where each is linked to each is not made for more."""

_WORDS: Final = 400
"""Characters of what another side says of its reasons that are told on."""

_Guid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Name = Annotated[str, msgspec.Meta(max_length=255)]
_Address = Annotated[str, msgspec.Meta(max_length=1024)]


def check_plain(what: str, text: str) -> None:
    """Names and addresses are printed and logged, so nothing may be in them that ends a line or moves a cursor. Raises ValueError."""
    if not text.isprintable():
        raise ValueError(f"the {what} has characters that can't be printed: {text!r}")


def plain(words: str) -> str:
    """What another side says, which may be anybody, on one line and no longer than a sentence or two."""
    words = words if len(words) <= _WORDS else f"{words[:_WORDS]} …"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in words)


class Node(msgspec.Struct, frozen=True):
    """One broker, from its start to its end."""

    guid: _Guid
    """Of its data folder: the same over restarts."""
    incarnation: Annotated[int, msgspec.Meta(ge=1)]
    """By chance, and another one for each start: two with one guid at a time are a copied folder."""
    cluster: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    name: _Name = ""
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=MOST_ADDRESSES)] = ()
    """Where the others reach it."""
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    """When it was started by its own clock: nanoseconds since 1970."""
    frame: Annotated[int, msgspec.Meta(ge=KiB, lt=2**32)] = 8 * MiB
    """The longest frame that it takes from its clients: what is longer is not sent to it."""

    def __post_init__(self) -> None:
        check_plain("name of a node", self.name)
        check_plain("name of a cluster", self.cluster)
        for address in self.addresses:
            check_plain("address of a node", address)

    def __str__(self) -> str:
        return f"{self.name or 'a node'} ({self.guid[:8]})"

    @property
    def age(self) -> tuple[int, int]:
        """Of two nodes with one guid the lower was there first; the clocks of two hosts may differ, but all judge alike."""
        return self.since, self.incarnation


class Sighting(msgspec.Struct, frozen=True):
    """What one node tells of another."""

    node: Node
    linked: bool
    """Whether it has a link to it now."""
    sure: bool = False
    """Whether it has just answered."""
    ago: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    """Seconds since it was there, as far as the teller knows."""
    stopped: bool = False
    """Whether it has said that it stops."""


class Stranger(ValueError):  # noqa: N818 - it is a node that is strange
    """What a node says about itself or others can't be."""


_sightings: Final = msgspec.msgpack.Decoder(Annotated[list[Sighting], msgspec.Meta(max_length=MOST_NODES)])
_encoder: Final = msgspec.msgpack.Encoder()


def read_node(given: Any) -> Node:
    """A node from the map that HELLO or WELCOME has of it. Raises Stranger."""
    try:
        node = msgspec.convert(given, Node)
    except msgspec.ValidationError as error:
        raise Stranger(f"not a node: {error}") from error
    _check_addresses(node)
    return node


def read_sightings(packed: bytes) -> list[Sighting]:
    """What another node tells of those it knows. Raises Stranger."""
    try:
        told: list[Sighting] = _sightings.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"not a list of nodes: {error}") from error
    for one in told:
        _check_addresses(one.node)
    return told


def pack_sightings(told: Iterable[Sighting]) -> bytes:
    return _encoder.encode(list(told)[:MOST_NODES])


def _check_addresses(node: Node) -> None:
    for address in node.addresses:
        try:
            scheme = parse(address).scheme
        except ValueError as error:
            raise Stranger(f"{node}: {error}") from error
        if scheme == "memory":
            raise Stranger(f"{node}: another process can't reach {address!r}")
