"""The definitions of a cluster's streams and channels: a replicated map. `agreement` calls this module.

Without input or output.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from busway.cluster.links.calls import Call
from busway.cluster.protocol import DEFINED
from busway.cluster.replicated_map import ReplicatedMap

MOST: Final = 100_000
"""Streams and channels above which a cluster creates no more."""
MOST_KNOWN: Final = 2 * MOST
"""Definitions above which those of other nodes are refused. Separated nodes may exceed MOST together."""
REMOVED: Final = 20_000
"""Removed definitions that are remembered at most."""
REMEMBERED: Final = 7 * 86_400 * 10**9
"""Nanoseconds for which a removed definition is remembered."""
_AHEAD: Final = 2**62
"""The largest accepted stamp. A definition with a larger one could never be replaced."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """One version of a stream (`orders`) or of a channel (`orders/billing`)."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=129)]
    stamp: Annotated[int, msgspec.Meta(ge=0, le=_AHEAD)]
    """The time of the change in nanoseconds since 1970."""
    guid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """The node of the change. It decides between equal stamps."""
    spec: dict[str, Any] | None
    """The settings; None: removed."""

    def __post_init__(self) -> None:
        if self.spec is not None:
            self.spec.pop("url", None)  # an early version put the URL of a database there, which is secret

    @property
    def version(self) -> tuple[int, str]:
        return self.stamp, self.guid

    @property
    def removed(self) -> bool:
        return self.spec is None

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


Failures: TypeAlias = list[tuple[str, str]]
"""The keys of definitions that a node could not apply, with the reasons."""

DEFINE: Final = Call[list[Definition], Failures](DEFINED, "list of streams and channels", list[Definition], Failures)


class Definitions(ReplicatedMap[str, Definition]):
    """The definitions that one node knows."""

    def __init__(
        self,
        guid: str,
        known: Iterable[Definition] = (),
        clock: int = 0,
        forgot: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(REMOVED, REMEMBERED, forgot)
        self._guid = guid
        for definition in sorted(known, key=lambda definition: definition.version):
            self.put(definition)
        self.tidy(clock)

    @property
    def full(self) -> bool:
        """Whether the cluster has its limit of streams and channels."""
        return self.values >= MOST

    def found(self, key: str, spec: dict[str, Any]) -> Definition:
        """The definition of a stream that exists here. Without one, a version that any other node's replaces."""
        return self.get(key) or Definition(key, 0, self._guid, spec)

    def make(self, key: str, spec: dict[str, Any] | None, clock: int) -> Definition:
        """Define a change made at this node. Its stamp is larger than that of the known version."""
        before = self.get(key)
        stamp = clock if before is None else max(clock, before.stamp + 1)
        definition = Definition(key, stamp, self._guid, spec)
        self.put(definition, clock)
        return definition

    def crowded(self, definition: Definition) -> bool:
        """Whether there are too many definitions to accept this one of another node."""
        return not definition.removed and self.get(definition.key) is None and len(self) >= MOST_KNOWN

    def moot(self, definition: Definition) -> bool:
        """Whether the definition is a channel of a removed stream."""
        stream = self.get(definition.stream)
        return bool(definition.channel) and stream is not None and stream.removed

    def channels(self, stream: str) -> list[Definition]:
        """The channels of a stream."""
        return [
            definition
            for definition in self
            if not definition.removed and definition.channel and definition.stream == stream
        ]
