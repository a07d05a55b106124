"""What streams and channels a cluster has: of two that differ the later one counts, on every node.

A machine: nobody is asked before something is made, changed or removed, and whoever was away takes over what it missed. What was removed
is remembered for a while, so that a node that was away does not bring it back.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from busway.cluster.node import Stranger

MOST: Final = 100_000
"""Streams and channels that one cluster may have before no more are made."""
MOST_KNOWN: Final = 2 * MOST
"""Those that are taken over: nodes that did not see each other may have made more together than each was to."""
REMOVED: Final = 20_000
"""Removed ones that are remembered,"""
REMEMBERED: Final = 7 * 86_400 * 10**9
"""for so long: nanoseconds."""
PORTION: Final = 60 * 1024
"""Bytes of definitions, about, that are told at once."""
_AHEAD: Final = 2**62
"""No clock says that: who comes with it would have the last word for ever."""
_HEAD: Final = struct.Struct(">BI")
_ARRAY: Final = 0xDD
"""MessagePack: an array with its length in four bytes."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """A stream (`orders`) or a channel of one (`orders/billing`), as somebody made or changed it."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=129)]
    stamp: Annotated[int, msgspec.Meta(ge=0, le=_AHEAD)]
    """When; nanoseconds since 1970."""
    guid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Where; it decides if that was at the same time."""
    spec: dict[str, Any] | None
    """Its settings; None: it was removed."""

    @property
    def age(self) -> tuple[int, str]:
        return self.stamp, self.guid

    @property
    def stream(self) -> str:
        """The stream that it is, or is in."""
        return self.key.partition("/")[0]

    @property
    def channel(self) -> str:
        """Empty: it is a stream."""
        return self.key.partition("/")[2]

    def __str__(self) -> str:
        return noun(self.key)


def noun(key: str) -> str:
    """What people are told of."""
    stream, _, channel = key.partition("/")
    return f"the channel {channel!r} of the stream {stream!r}" if channel else f"the stream {stream!r}"


class Definitions:
    """What one node knows of all."""

    def __init__(self, guid: str, known: Iterable[Definition] = (), clock: int = 0) -> None:
        self._guid = guid
        self._known = {one.key: one for one in known}
        removed = sorted((one for one in self._known.values() if one.spec is None), key=lambda one: one.age)
        self._removed = {one.key: None for one in removed}
        """The oldest ones first."""
        self._tidy(clock)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """Whether no more are to be made."""
        return len(self._known) - len(self._removed) >= MOST

    def get(self, key: str) -> Definition | None:
        return self._known.get(key)

    def found(self, key: str, spec: dict[str, Any]) -> Definition:
        """One that is here and was never told: anybody's word counts more."""
        return self._known.get(key) or Definition(key, 0, self._guid, spec)

    def make(self, key: str, spec: dict[str, Any] | None, clock: int) -> Definition:
        """Somebody has made, changed or removed it here; later than whatever is known of it, whatever the clocks say."""
        before = self._known.get(key)
        stamp = clock if before is None else max(clock, before.stamp + 1)
        one = Definition(key, stamp, self._guid, spec)
        self._put(one, clock)
        return one

    def newer(self, one: Definition) -> bool:
        """Whether somebody else's word is later than what is known here."""
        before = self._known.get(one.key)
        return before is None or before.age < one.age

    def crowded(self, one: Definition) -> bool:
        """Whether there are so many that not even somebody else's is taken."""
        return one.spec is not None and one.key not in self._known and len(self._known) >= MOST_KNOWN

    def take(self, one: Definition, clock: int = 0) -> None:
        """Somebody else's word counts, if it is the later one."""
        if self.newer(one):
            self._put(one, clock)

    def moot(self, one: Definition) -> bool:
        """Whether it is a channel of a stream that was removed."""
        stream = self._known.get(one.stream)
        return bool(one.channel) and stream is not None and stream.spec is None

    def channels(self, stream: str) -> list[Definition]:
        """Those that a stream has."""
        return [one for one in self._known.values() if one.spec is not None and one.channel and one.stream == stream]

    def _put(self, one: Definition, clock: int) -> None:
        self._known[one.key] = one
        self._removed.pop(one.key, None)
        if one.spec is None:
            self._removed[one.key] = None
            self._tidy(clock)

    def _tidy(self, clock: int) -> None:
        """Forget what was removed long ago, or before very many others."""
        while self._removed:
            key = next(iter(self._removed))
            if len(self._removed) <= REMOVED and self._known[key].stamp >= clock - REMEMBERED:
                return
            del self._removed[key], self._known[key]


_decoder: Final = msgspec.msgpack.Decoder(list[Definition])
_encoder: Final = msgspec.msgpack.Encoder()


def portions(definitions: Iterable[Definition]) -> Iterator[bytes]:
    """They are told in so many frames."""
    some: list[bytes] = []
    size = 0
    for one in definitions:
        packed = _encoder.encode(one)
        if some and size + len(packed) > PORTION:
            yield _HEAD.pack(_ARRAY, len(some)) + b"".join(some)
            some, size = [], 0
        some.append(packed)
        size += len(packed)
    if some:
        yield _HEAD.pack(_ARRAY, len(some)) + b"".join(some)


def without_url(one: Definition) -> Definition:
    """As it is known here: nodes of an earlier version have the URLs of databases in it, which no node is to tell."""
    if one.spec is None or "url" not in one.spec:
        return one
    return msgspec.structs.replace(one, spec={key: value for key, value in one.spec.items() if key != "url"})


def read(packed: bytes) -> list[Definition]:
    """Raises Stranger."""
    try:
        found: list[Definition] = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"not a list of streams and channels: {error}") from error
    return [without_url(one) for one in found]
