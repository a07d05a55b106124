"""A channel or a stream as a whole, from what its parts at the nodes of a cluster say. Values and sums only."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from busway.broker.channels.driver import ChannelDriver
from busway.errors import Code
from busway.streams import ChannelInfo, ChannelPart, StreamInfo, StreamPart

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_SUMS: Final = (
    "lag",
    "in_flight",
    "waiting",
    "dying",
    "consumers",
    "redelivered",
    "dead",
    "late",
    "refused",
    "lost",
)
_OWN: Final = ("floor", "cursor", *_SUMS)
STREAM_FIGURES: Final = tuple(name for name in StreamPart.__struct_fields__ if name not in {"broker", "node", "error"})
_NOT_THERE: Final = {Code.NO_CHANNEL, Code.NO_STREAM}


class NodeAnswer(NamedTuple):
    """What another node says of its part, or why it says nothing."""

    guid: str
    """Empty if nothing but an address is known."""
    node: str
    """Its name, or what there is instead."""
    channels: tuple[ChannelInfo, ...] = ()
    offset: int = 0
    """Where a seek has led."""
    code: int = Code.OK
    error: str = ""
    streams: tuple[StreamInfo, ...] = ()
    states: tuple[int, ...] = ()
    """What became of dead letters."""

    @property
    def heard(self) -> bool:
        """Whether all is known of its part, and be it that there is none."""
        return not self.error or self.code in _NOT_THERE


def own_figures(hub: "Hub", driver: ChannelDriver) -> dict[str, Any]:
    """Of the part that this broker has. A consumer is counted where it is connected, although it consumes at every node."""
    outlets = hub.channels.outlets
    consumers = sum(conn not in outlets for conn, _ in driver.consumers)
    return driver.figures() | {"consumers": consumers}


def summed(
    hub: "Hub", here: list[dict[str, Any]], others: Iterable[NodeAnswer], *, parts: bool
) -> list[dict[str, Any]]:
    """Each channel once, with the sums of all its parts; floor and cursor are of the part here, if there is one."""
    others = list(others)
    wholes = {one["name"]: dict(one) for one in here}
    told = {name: [_part(hub.guid, hub.name or hub.guid[:8], one)] for name, one in wholes.items()}
    for answer in others:
        for info in answer.channels:
            figures = msgspec.to_builtins(info)
            whole = wholes.get(info.name)
            if whole is None:
                wholes[info.name] = figures
            else:
                whole.update({name: whole[name] + figures[name] for name in _SUMS})
            told.setdefault(info.name, []).append(_part(answer.guid, answer.node, figures))
    silent = [one for one in others if not one.heard]
    for name, whole in wholes.items():
        whole["unreached"] = [one.node for one in silent]
        if parts:
            whole["parts"] = told[name] + [ChannelPart(one.guid, one.node, one.error) for one in silent]
    return list(wholes.values())


def _part(guid: str, node: str, figures: dict[str, Any]) -> ChannelPart:
    return ChannelPart(guid, node, "", **{name: figures[name] for name in _OWN})


def with_parts(hub: "Hub", here: list[dict[str, Any]], others: Iterable[NodeAnswer]) -> list[dict[str, Any]]:
    """Each stream with what every node has of it; its own figures stay those of the part here."""
    others = list(others)
    silent = [one for one in others if not one.heard]
    wholes = []
    for one in here:
        parts = [_stream_part(hub.guid, hub.name or hub.guid[:8], one)]
        for answer in others:
            found = next((info for info in answer.streams if info.name == one["name"]), None)
            if found is not None:
                parts.append(_stream_part(answer.guid, answer.node, msgspec.to_builtins(found)))
        parts += [StreamPart(answer.guid, answer.node, answer.error) for answer in silent]
        wholes.append(one | {"parts": parts, "unreached": [answer.node for answer in silent]})
    return wholes


def _stream_part(guid: str, node: str, figures: dict[str, Any]) -> StreamPart:
    return StreamPart(guid, node, "", **{name: figures[name] for name in STREAM_FIGURES})
