"""The survey of a channel or a stream: combines the answers of all nodes about their parts. Values and sums only."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from busway.broker.channels.driver import ChannelDriver
from busway.errors import Code
from busway.streams import ChannelInfo, ChannelPart, StreamInfo, StreamPart

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.runtime import Runtime

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
    """The answer of another node about its part, or the error."""

    guid: str
    """The guid of the node. Empty if only its address is known."""
    node: str
    """The name of the node, or its address."""
    channels: tuple[ChannelInfo, ...] = ()
    offset: int = 0
    """The offset after a seek."""
    code: int = Code.OK
    error: str = ""
    streams: tuple[StreamInfo, ...] = ()
    states: tuple[int, ...] = ()
    """The status of dead letters."""

    @property
    def complete(self) -> bool:
        """Whether the answer is complete. A node without a part counts, too."""
        return not self.error or self.code in _NOT_THERE


def own_figures(driver: ChannelDriver, all_consumers: "ChannelConsumers") -> dict[str, Any]:
    """The figures of this broker's part. A consumer counts only at its own node, although it consumes at every node."""
    consumers = sum(conn not in all_consumers.node_sinks for conn, _ in driver.consumers)
    return driver.figures() | {"consumers": consumers}


def summed(
    runtime: "Runtime", here: list[dict[str, Any]], others: Iterable[NodeAnswer], *, parts: bool
) -> list[dict[str, Any]]:
    """Each channel once, with the sums of all its parts. Floor and cursor are of this broker's part, if it has one."""
    others = list(others)
    wholes = {figures["name"]: dict(figures) for figures in here}
    found = {name: [_part(runtime.guid, runtime.name or runtime.guid[:8], figures)] for name, figures in wholes.items()}
    for answer in others:
        for info in answer.channels:
            figures = msgspec.to_builtins(info)
            whole = wholes.get(info.name)
            if whole is None:
                wholes[info.name] = figures
            else:
                whole.update({name: whole[name] + figures[name] for name in _SUMS})
            found.setdefault(info.name, []).append(_part(answer.guid, answer.node, figures))
    silent = [answer for answer in others if not answer.complete]
    for name, whole in wholes.items():
        whole["unreached"] = [answer.node for answer in silent]
        if parts:
            whole["parts"] = found[name] + [ChannelPart(answer.guid, answer.node, answer.error) for answer in silent]
    return list(wholes.values())


def _part(guid: str, node: str, figures: dict[str, Any]) -> ChannelPart:
    return ChannelPart(guid, node, "", **{name: figures[name] for name in _OWN})


def with_parts(runtime: "Runtime", here: list[dict[str, Any]], others: Iterable[NodeAnswer]) -> list[dict[str, Any]]:
    """Each stream with its part at every node. Its own figures stay those of this broker's part."""
    others = list(others)
    silent = [answer for answer in others if not answer.complete]
    wholes = []
    for figures in here:
        parts = [_stream_part(runtime.guid, runtime.name or runtime.guid[:8], figures)]
        for answer in others:
            found = next((info for info in answer.streams if info.name == figures["name"]), None)
            if found is not None:
                parts.append(_stream_part(answer.guid, answer.node, msgspec.to_builtins(found)))
        parts += [StreamPart(answer.guid, answer.node, answer.error) for answer in silent]
        wholes.append(figures | {"parts": parts, "unreached": [answer.node for answer in silent]})
    return wholes


def _stream_part(guid: str, node: str, figures: dict[str, Any]) -> StreamPart:
    return StreamPart(guid, node, "", **{name: figures[name] for name in STREAM_FIGURES})
