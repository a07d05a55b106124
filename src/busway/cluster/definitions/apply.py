"""Makes streams and channels of this node as another node has them.

A driver, and a part of `agreeing`, which knows what counts.
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
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")


def spec_of(config: StreamConfig) -> dict[str, Any]:
    """What other nodes are told of a stream."""
    return {key: getattr(config, key) for key in SETTINGS}


class Applier:
    """The streams and channels of one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.lost: set[str] = set()
        """Streams that were here when the node ran last, and are not any more."""

    async def apply(self, one: Definition, counts: Callable[[], bool]) -> None:
        """Make, change or remove it. `counts`: whether its word still does; it is asked before something is lost.

        Raises BusError, ValueError, TypeError or LookupError if that can't be.
        """
        if one.channel:
            await self._channel(one.stream, one.channel, one.spec)
        elif one.spec is not None:
            await self._stream(one.stream, one.spec)
        elif one.stream in self._hub.streams.by_name:
            log.warning("the stream %r is removed, as at another node", one.stream)
            await self._hub.streams.remove(one.stream, counts)

    async def _stream(self, name: str, spec: dict[str, Any]) -> None:
        streams = self._hub.streams
        config = self._local(wanted := StreamConfig.make(name, **spec))
        if name not in streams.by_name:
            try:
                await streams.create(config, lost=name in self.lost and config.store == "disk")
                self.lost.discard(name)
            except Rejected:
                if name not in streams.by_name:
                    raise
                # Somebody here was faster, and has made it with other settings.
            else:
                if config.store != wanted.store:
                    log.warning("the stream %r is stored in %s here, not in %s", name, config.store, wanted.store)
                return
        old = streams.by_name[name].config
        same: dict[str, Any] = {"store": old.store}
        if old.store != "disk" and config.safety == "mirrored":
            same["safety"] = "written"
        changed = old.changed(**{key: getattr(config, key) for key in SETTINGS} | same)
        if changed != old:
            await streams.update(changed)

    def _local(self, config: StreamConfig) -> StreamConfig:
        """As this node can have it. A store with a name is the database that its operator has given that name."""
        best = self._hub.streams.best
        if config.store in {"disk", "db"} and best != "disk":
            safety = "written" if config.safety == "mirrored" else config.safety
            return msgspec.structs.replace(config, store=best, safety=safety)
        return config

    async def _channel(self, stream: str, channel: str, spec: dict[str, Any] | None) -> None:
        delivering = self._hub.channels
        if spec is not None:
            settings = USUAL_SETTINGS | spec["settings"]  # what a definition does not name has its default
            if isinstance(rules := settings.get("where"), str):
                settings = settings | {"where": base64.b64decode(rules)}
            kind, value = spec["start"]
            await delivering.declare(stream, channel, settings, (kind, value))
            return
        try:
            driver = delivering.get(stream, channel)
        except Rejected as error:
            if error.code not in {Code.NO_STREAM, Code.NO_CHANNEL}:
                raise
        else:
            await delivering.remove(driver)
