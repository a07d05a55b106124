"""A broker as the other nodes of its cluster know it: its description, and the sightings that nodes exchange.

The packages of the cluster use these values. Values of another node are checked here.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from busway.settings import KiB, MiB
from busway.transport.address import parse

MOST_ADDRESSES: Final = 8
MOST_NODES: Final = 1000
"""Nodes of a cluster at most, since every node is linked to every other one."""

_MAX_TEXT: Final = 400
"""Characters of another side's text that are logged or forwarded at most."""

_Guid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Name = Annotated[str, msgspec.Meta(max_length=255)]
_Address = Annotated[str, msgspec.Meta(max_length=1024)]


def check_plain(what: str, text: str) -> None:
    """Refuse a name or an address with control characters, since it is printed and logged. Raises ValueError."""
    if not text.isprintable():
        raise ValueError(f"the {what} has characters that can't be printed: {text!r}")


def plain(words: str) -> str:
    """The text of an unverified side, on one line and shortened."""
    words = words if len(words) <= _MAX_TEXT else f"{words[:_MAX_TEXT]} …"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)


class Node(msgspec.Struct, frozen=True):
    """One run of a broker, from its start to its end."""

    guid: _Guid
    """The identity of its data folder, which survives restarts."""
    incarnation: Annotated[int, msgspec.Meta(ge=1)]
    """A random number per start. Two incarnations of one guid at a time mean a copied data folder."""
    cluster: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    name: _Name = ""
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=MOST_ADDRESSES)] = ()
    """The addresses at which other nodes reach it."""
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    """When it was started, by its own clock: nanoseconds since 1970."""
    frame: Annotated[int, msgspec.Meta(ge=KiB, lt=2**32)] = 8 * MiB
    """The longest frame that it accepts from its clients. Longer ones are not sent to it."""

    def __post_init__(self) -> None:
        check_plain("name of a node", self.name)
        check_plain("name of a cluster", self.cluster)
        for address in self.addresses:
            check_plain("address of a node", address)

    def __str__(self) -> str:
        return f"{self.name or 'a node'} ({self.guid[:8]})"

    @property
    def age(self) -> tuple[int, int]:
        """The order of nodes with one guid: the lower was started first. All nodes agree even if clocks differ."""
        return self.since, self.incarnation


class Sighting(msgspec.Struct, frozen=True):
    """One node's report about another node."""

    node: Node
    linked: bool
    """Whether the reporting node is linked to it now."""
    sure: bool = False
    """Whether it has just answered a probe."""
    ago: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    """Seconds since it was seen, as far as the reporting node knows."""
    stopped: bool = False
    """Whether it has announced its stop."""


class Stranger(ValueError):  # noqa: N818 - names the node
    """Another node sent an invalid value. The link to it is closed."""


_sightings: Final = msgspec.msgpack.Decoder(Annotated[list[Sighting], msgspec.Meta(max_length=MOST_NODES)])
_encoder: Final = msgspec.msgpack.Encoder()


def read_node(given: Any) -> Node:
    """The node in a HELLO or WELCOME. Raises Stranger."""
    try:
        node = msgspec.convert(given, Node)
    except msgspec.ValidationError as error:
        raise Stranger(f"invalid node: {error}") from error
    _check_addresses(node)
    return node


def read_sightings(packed: bytes) -> list[Sighting]:
    """Decode and check sightings of another node. Raises Stranger."""
    try:
        sightings: list[Sighting] = _sightings.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"invalid list of nodes: {error}") from error
    for sighting in sightings:
        _check_addresses(sighting.node)
    return sightings


def pack_sightings(sightings: Iterable[Sighting]) -> bytes:
    """Encode sightings for another node."""
    return _encoder.encode(list(sightings)[:MOST_NODES])


def _check_addresses(node: Node) -> None:
    for address in node.addresses:
        try:
            scheme = parse(address).scheme
        except ValueError as error:
            raise Stranger(f"{node}: {error}") from error
        if scheme == "memory":
            raise Stranger(f"{node}: another process can't reach {address!r}")
