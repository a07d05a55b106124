"""The definitions of a cluster's streams and channels: a last-writer-wins register that every node has.

Every node changes definitions without asking the others, and a node that was away learns what it missed. Removed
definitions are remembered for a while, so that such a node does not restore them. `agreement` calls this module.
Without input or output.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from busway.cluster.node import Stranger

MOST: Final = 100_000
"""Streams and channels above which a cluster creates no more."""
MOST_KNOWN: Final = 2 * MOST
"""Definitions above which those of other nodes are refused. Separated nodes may exceed MOST together."""
REMOVED: Final = 20_000
"""Removed definitions that are remembered at most."""
REMEMBERED: Final = 7 * 86_400 * 10**9
"""Nanoseconds for which a removed definition is remembered."""
PORTION: Final = 60 * 1024
"""Approximate bytes of definitions in one frame."""
_AHEAD: Final = 2**62
"""The largest accepted stamp. A definition with a larger one could never be replaced."""
_HEAD: Final = struct.Struct(">BI")
_ARRAY: Final = 0xDD
"""MessagePack: an array with its length in four bytes."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """One version of a stream (`orders`) or of a channel (`orders/billing`)."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=129)]
    stamp: Annotated[int, msgspec.Meta(ge=0, le=_AHEAD)]
    """The time of the change in nanoseconds since 1970."""
    guid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """The node of the change. It decides between equal stamps."""
    spec: dict[str, Any] | None
    """The settings; None: removed."""

    @property
    def age(self) -> tuple[int, str]:
        """The order of versions: the larger one counts."""
        return self.stamp, self.guid

    @property
    def stream(self) -> str:
        """The name of the stream, also of a channel's stream."""
        return self.key.partition("/")[0]

    @property
    def channel(self) -> str:
        """The name of the channel; empty for a stream."""
        return self.key.partition("/")[2]

    def __str__(self) -> str:
        return noun(self.key)


def noun(key: str) -> str:
    """The stream or channel with this key, for messages."""
    stream, _, channel = key.partition("/")
    return f"the channel {channel!r} of the stream {stream!r}" if channel else f"the stream {stream!r}"


class Definitions:
    """The definitions that one node knows."""

    def __init__(self, guid: str, known: Iterable[Definition] = (), clock: int = 0) -> None:
        self._guid = guid
        self._known = {definition.key: definition for definition in known}
        removed = sorted(
            (definition for definition in self._known.values() if definition.spec is None),
            key=lambda definition: definition.age,
        )
        self._removed = {definition.key: None for definition in removed}
        """Keys of removed definitions, oldest first."""
        self._tidy(clock)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """Whether the cluster has its limit of streams and channels."""
        return len(self._known) - len(self._removed) >= MOST

    def get(self, key: str) -> Definition | None:
        return self._known.get(key)

    def found(self, key: str, spec: dict[str, Any]) -> Definition:
        """The definition of a stream that exists here. Without one, a version that any other node's replaces."""
        return self._known.get(key) or Definition(key, 0, self._guid, spec)

    def make(self, key: str, spec: dict[str, Any] | None, clock: int) -> Definition:
        """Define a change made at this node. Its stamp is larger than that of the known version."""
        before = self._known.get(key)
        stamp = clock if before is None else max(clock, before.stamp + 1)
        definition = Definition(key, stamp, self._guid, spec)
        self._put(definition, clock)
        return definition

    def newer(self, definition: Definition) -> bool:
        """Whether a definition is newer than the known version."""
        before = self._known.get(definition.key)
        return before is None or before.age < definition.age

    def crowded(self, definition: Definition) -> bool:
        """Whether there are too many definitions to accept this one of another node."""
        return definition.spec is not None and definition.key not in self._known and len(self._known) >= MOST_KNOWN

    def take(self, definition: Definition, clock: int = 0) -> None:
        """Store a definition of another node, if it is newer."""
        if self.newer(definition):
            self._put(definition, clock)

    def moot(self, definition: Definition) -> bool:
        """Whether the definition is a channel of a removed stream."""
        stream = self._known.get(definition.stream)
        return bool(definition.channel) and stream is not None and stream.spec is None

    def channels(self, stream: str) -> list[Definition]:
        """The channels of a stream."""
        return [
            definition
            for definition in self._known.values()
            if definition.spec is not None and definition.channel and definition.stream == stream
        ]

    def _put(self, definition: Definition, clock: int) -> None:
        self._known[definition.key] = definition
        self._removed.pop(definition.key, None)
        if definition.spec is None:
            self._removed[definition.key] = None
            self._tidy(clock)

    def _tidy(self, clock: int) -> None:
        """Forget removed definitions that are too old or too many."""
        while self._removed:
            key = next(iter(self._removed))
            if len(self._removed) <= REMOVED and self._known[key].stamp >= clock - REMEMBERED:
                return
            del self._removed[key], self._known[key]


_decoder: Final = msgspec.msgpack.Decoder(list[Definition])
_encoder: Final = msgspec.msgpack.Encoder()


def portions(definitions: Iterable[Definition]) -> Iterator[bytes]:
    """Encode definitions into the bodies of one or more frames."""
    batch: list[bytes] = []
    size = 0
    for definition in definitions:
        packed = _encoder.encode(definition)
        if batch and size + len(packed) > PORTION:
            yield _HEAD.pack(_ARRAY, len(batch)) + b"".join(batch)
            batch, size = [], 0
        batch.append(packed)
        size += len(packed)
    if batch:
        yield _HEAD.pack(_ARRAY, len(batch)) + b"".join(batch)


def without_url(definition: Definition) -> Definition:
    """The definition without the database URL that nodes of an earlier version put into it. URLs are secret."""
    if definition.spec is None or "url" not in definition.spec:
        return definition
    return msgspec.structs.replace(
        definition, spec={key: value for key, value in definition.spec.items() if key != "url"}
    )


def read(packed: bytes) -> list[Definition]:
    """Decode definitions of another node. Raises Stranger."""
    try:
        found: list[Definition] = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"not a list of streams and channels: {error}") from error
    return [without_url(definition) for definition in found]
