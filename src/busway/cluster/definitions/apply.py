"""Applies definitions: creates, changes and removes streams and channels of this node as another node has them.

`agreement` calls it and decides which definitions count.
"""

import base64
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from busway.broker.channels.state.progress import USUAL_SETTINGS
from busway.cluster.definitions.definitions import Definition
from busway.errors import Code, Rejected
from busway.streams import SETTINGS, StreamConfig

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.streams.manager import Streams
    from busway.broker.streams.table import StreamTable

log = logging.getLogger("busway.cluster")


def spec_of(config: StreamConfig) -> dict[str, Any]:
    """The settings of a stream, as sent to other nodes."""
    return {key: getattr(config, key) for key in SETTINGS}


class Applier:
    """Applies definitions to the streams and channels of one broker."""

    def __init__(
        self, table: "StreamTable", streams: "Callable[[], Streams]", channels: "Callable[[], Channels]"
    ) -> None:
        self._table = table
        self._streams = streams
        self._channels = channels
        self.lost: set[str] = set()
        """Streams that this node had in its last run and has lost."""

    async def apply(self, definition: Definition, counts: Callable[[], bool]) -> None:
        """Create, change or remove a stream or channel.

        `counts` tells whether the definition is still current; it is asked before data is deleted.

        Raises BusError, ValueError, TypeError or LookupError if that fails.
        """
        if definition.channel:
            await self._channel(definition.stream, definition.channel, definition.spec)
        elif definition.spec is not None:
            await self._stream(definition.stream, definition.spec)
        elif definition.stream in self._table.by_name:
            log.warning("removing the stream %r, which was removed at another node", definition.stream)
            await self._streams().remove(definition.stream, counts)

    async def _stream(self, name: str, spec: dict[str, Any]) -> None:
        streams = self._streams()
        config = self._local(wanted := StreamConfig.make(name, **spec))
        if name not in streams.by_name:
            try:
                await streams.create(config, lost=name in self.lost and config.store == "disk")
                self.lost.discard(name)
            except Rejected:
                if name not in streams.by_name:
                    raise
                # A client of this node has just created it with other settings.
            else:
                if config.store != wanted.store:
                    log.warning("this node stores the stream %r in %s, not in %s", name, config.store, wanted.store)
                return
        old = streams.by_name[name].config
        same: dict[str, Any] = {"store": old.store}
        if old.store != "disk" and config.safety == "mirrored":
            same["safety"] = "written"
        changed = old.changed(**{key: getattr(config, key) for key in SETTINGS} | same)
        if changed != old:
            await streams.update(changed)

    def _local(self, config: StreamConfig) -> StreamConfig:
        """The settings with a store that this node has. A named store is the database configured under that name."""
        best = self._table.best
        if config.store in {"disk", "db"} and best != "disk":
            safety = "written" if config.safety == "mirrored" else config.safety
            return msgspec.structs.replace(config, store=best, safety=safety)
        return config

    async def _channel(self, stream: str, channel: str, spec: dict[str, Any] | None) -> None:
        channels = self._channels()
        if spec is not None:
            settings = USUAL_SETTINGS | spec["settings"]  # settings that a definition omits have their default
            if isinstance(rules := settings.get("where"), str):
                settings = settings | {"where": base64.b64decode(rules)}
            kind, value = spec["start"]
            await channels.declare(stream, channel, settings, (kind, value))
            return
        try:
            driver = channels.get(stream, channel)
        except Rejected as error:
            if error.code not in {Code.NO_STREAM, Code.NO_CHANNEL}:
                raise
        else:
            await channels.remove(driver)
