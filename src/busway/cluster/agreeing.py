"""Streams and channels are the same on all nodes: tells the others what is made here, and makes what they tell.

A driver over definitions.py. What is told is done one after the other; who has made something can wait until all have it.
"""

import asyncio
import base64
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway import ambient
from busway.broker.data import replace, sealed, unsealed
from busway.broker.stream import Stream
from busway.cluster.definitions import Definition, Definitions, pack, read
from busway.cluster.node import Node, Stranger
from busway.cluster.noting import Unsure
from busway.cluster.talk import DEFINED, DONE, Talk
from busway.errors import BusError, Code, Rejected
from busway.streams import DEFAULT, SETTINGS, StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

FILE: Final = "cluster.json"
_PATIENCE: Final = 5.0
"""Seconds that who makes something waits for other nodes."""


class _Done(msgspec.Struct, array_like=True, frozen=True):
    key: str
    stamp: int
    error: str = ""


class _File(msgspec.Struct, frozen=True):
    streams: dict[str, tuple[int, str, dict[str, Any] | None]] = {}


class Agreeing(Talk):
    """The streams and channels of all nodes, seen from one of them."""

    kinds = frozenset({DEFINED, DONE})

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._file: Path | None = None if hub.folder is None else hub.folder / FILE
        self._definitions = Definitions(hub.guid, self._load())
        self._links: dict[int, Node] = {}
        self._todo: deque[tuple[int, Definition]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._applying = ""
        self._waiting: dict[tuple[str, int], tuple[set[int], asyncio.Future[None]]] = {}

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node
        known = {one.key: one for one in self._definitions}
        for name, stream in self._hub.streaming.streams.items():
            if name != DEFAULT:
                known.setdefault(name, self._definitions.found(name, _spec(stream.config)))
        self._hub.engine.node(conn, DEFINED, 0, pack(known.values()))

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        for key in list(self._waiting):
            self._heard_of(conn, *key)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - keys are enough
        if kind == DEFINED:
            self._todo.extend((conn, one) for one in read(body))
            if self._task is None:
                self._task = self._hub.loop.create_task(self._work(), name="busway definitions")
            return
        try:
            done = msgspec.msgpack.decode(body, type=_Done)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Stranger(f"done: {error}") from error
        if done.error:
            log.warning("%s can't have %s: %s", self._links[conn], _noun(done.key), done.error)
        self._heard_of(conn, done.key, done.stamp)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # What is made here.

    def stream(self, stream: Stream, *, there: bool) -> None:
        """One was made, changed or removed."""
        if self._applying == stream.name:
            return
        if not there:  # and all its channels, or they were back with another stream of this name
            gone = [one for one in self._definitions if one.key.startswith(f"{stream.name}/")]
            for one in gone:
                self._define(one.key, None)
        self._define(stream.name, _spec(stream.config) if there else None)

    def channel(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        """One was made (with the place where it begins in parts that don't have it), changed, or removed."""
        if self._applying == (key := f"{stream}/{name}"):
            return
        before = self._definitions.get(key)
        if start is None:
            start = ("first", None) if before is None or before.spec is None else before.spec["start"]
        self._define(key, None if settings is None else {"settings": settings, "start": start})

    def _define(self, key: str, spec: dict[str, Any] | None) -> None:
        one = self._definitions.make(key, spec, ambient.time_ns())
        self._save()
        if self._links:
            told = self._hub.loop.create_future()
            self._waiting[key, one.stamp] = set(self._links), told
            for conn in self._links:
                self._hub.engine.node(conn, DEFINED, 0, pack([one]))
            self._hub.loop.call_soon(self._hub.flush)

    async def settled(self, key: str) -> None:
        """Return when every linked node has what was made here last, or says why not, or takes too long, which is told."""
        one = self._definitions.get(key)
        waits = None if one is None else self._waiting.get((key, one.stamp))
        if one is None or waits is None:
            return
        late, told = waits
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.shield(told)
        except TimeoutError:
            names = ", ".join(str(self._links[conn]) for conn in late if conn in self._links)
            log.warning("%s is not known yet to %s", _noun(key), names)
            self._waiting.pop((key, one.stamp), None)

    def _heard_of(self, conn: int, key: str, stamp: int) -> None:
        late, told = self._waiting.get((key, stamp), (set[int](), None))
        late.discard(conn)
        if not late and told is not None:
            del self._waiting[key, stamp]
            if not told.done():
                told.set_result(None)

    # What others tell.

    async def _work(self) -> None:
        try:
            while self._todo:
                conn, one = self._todo.popleft()
                error = ""
                if self._definitions.newer(one):
                    try:
                        await self._apply(one)
                    except Unsure as failure:  # it is there; the mirror hears of it when it is back
                        log.warning("%s is made as another node has it, but %s", _noun(one.key), failure.reason)
                    except (BusError, ValueError, TypeError) as failure:
                        error = failure.reason if isinstance(failure, BusError) else str(failure)
                        log.error("%s can't be made as another node has it: %s", _noun(one.key), error)  # noqa: TRY400, no fault of ours
                    self._definitions.take(one)
                    self._save()
                if conn in self._links:
                    said = msgspec.msgpack.encode(_Done(one.key, one.stamp, error))
                    self._hub.engine.node(conn, DONE, 0, said)
                    self._hub.flush()
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, None, "the definitions of another node")
        finally:
            self._task = None

    async def _apply(self, one: Definition) -> None:
        self._applying = one.key
        try:
            stream, _, channel = one.key.partition("/")
            if channel:
                await self._apply_channel(stream, channel, one.spec)
            else:
                await self._apply_stream(stream, one.spec)
        finally:
            self._applying = ""

    async def _apply_stream(self, name: str, spec: dict[str, Any] | None) -> None:
        streaming = self._hub.streaming
        old = streaming.streams.get(name)
        if spec is None:
            if old is not None:
                log.warning("the stream %r is removed, as at another node", name)
                await streaming.remove(name)
            return
        config = self._local(StreamConfig.make(name, **spec))
        if old is None:
            await streaming.create(config)
        else:
            same: dict[str, Any] = {"store": old.config.store, "url": old.config.url}
            if old.config.store != "disk" and config.safety == "mirrored":
                same["safety"] = "written"
            changed = old.config.changed(**{key: getattr(config, key) for key in SETTINGS} | same)
            if changed != old.config:
                await streaming.update(changed)

    def _local(self, config: StreamConfig) -> StreamConfig:
        """As this node can have it: each stores what its own clients publish, so no two share a database."""
        best = self._hub.streaming.best
        if (config.store == "disk" and best != "disk") or (config.store == "db" and (config.url or best != "disk")):
            log.warning("the stream %r is stored in %s here, not in %s", config.name, best, config.store)
            safety = "written" if config.safety == "mirrored" else config.safety
            return msgspec.structs.replace(config, store=best, url=None, safety=safety)
        return config

    async def _apply_channel(self, stream: str, channel: str, spec: dict[str, Any] | None) -> None:
        delivering = self._hub.delivering
        if spec is not None:
            settings = spec["settings"]
            if isinstance(rules := settings.get("where"), str):
                settings = settings | {"where": base64.b64decode(rules)}
            kind, value = spec["start"]
            await delivering.declare(stream, channel, settings, (kind, value))
            return
        try:
            handing = delivering.get(stream, channel)
        except Rejected as error:
            if error.code not in {Code.NO_STREAM, Code.NO_CHANNEL}:
                raise
        else:
            await delivering.remove(handing)

    # The file.

    def _load(self) -> list[Definition]:
        if self._file is None:
            return []
        try:
            found = unsealed(self._file.read_bytes(), _File)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            log.warning("%s can't be read, the other nodes' word counts: %s", self._file, error)
            return []
        return [Definition(key, *one) for key, one in found.streams.items()]

    def _save(self) -> None:
        if self._file is None:
            return
        known = {one.key: (one.stamp, one.guid, one.spec) for one in self._definitions}
        try:
            replace(self._file, sealed(_File(known)), 0o600)
        except OSError as error:
            log.warning("%s can't be written: %s", self._file, error.strerror)


def _spec(config: StreamConfig) -> dict[str, Any]:
    return {key: getattr(config, key) for key in SETTINGS}


def _noun(key: str) -> str:
    stream, _, channel = key.partition("/")
    return f"the channel {channel!r} of the stream {stream!r}" if channel else f"the stream {stream!r}"
