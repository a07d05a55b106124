"""Keeps streams and channels the same on all nodes: sends this node's changes to the others and applies theirs.

`links` calls it for frames, and `peers` for changes at this node. The rules are in `definitions` and `missing`.
Changes of other nodes are applied one after the other. A client's change can wait until all linked nodes have it.
Changes that can't be applied are reported and retried.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from busway.broker.streams.stream import Stream
from busway.cluster.definitions.apply import Applier, spec_of
from busway.cluster.definitions.definitions import MOST, MOST_KNOWN, Definition, Definitions, noun, portions, read
from busway.cluster.definitions.file import DefinitionFile, Noted
from busway.cluster.definitions.missing import MissingDefinitions
from busway.cluster.definitions.refusal import Refusals
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import DEFINED, DONE, SELF, NodeProtocolHandler
from busway.cluster.replication.channel_progress import Unsure
from busway.common import environment
from busway.errors import BusError, Code, LimitExceeded
from busway.settings import KiB
from busway.streams import DEFAULT

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

Tell: TypeAlias = Callable[[str, str, str, Node | None], object]
"""Reports an event: its kind, the key of the definition, a text, and the other node if it concerns one."""

_PATIENCE: Final = 5.0
"""Seconds that a change waits for other nodes, and a start for missing definitions."""
_TURN: Final = 0.005
"""Seconds of work after which other tasks may run."""
_AHEAD: Final = 256 * KiB
"""Bytes that may wait in the outbox of a new link before it gets more definitions."""
_GONE: Final = "it was missing when this node started"
_NEWS: Final = 1
"""The number of a frame with new changes, which the receiver answers."""


class _Done(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a change: the node has applied it, or could not (`error`)."""

    key: str
    stamp: int
    error: str = ""


class _Job(NamedTuple):
    """A definition to apply."""

    definition: Definition
    conn: int = SELF
    """The link that it came from; SELF: this node retries it."""
    answer: bool = False


class Agreement(NodeProtocolHandler):
    """The definitions of all nodes, at one of them."""

    kinds = frozenset({DEFINED, DONE})

    def __init__(self, hub: "Hub", notice: Tell) -> None:
        self._hub = hub
        self._notice = notice
        self._file = None if hub.folder is None else DefinitionFile(hub.folder, self._records)
        self._stored = [] if self._file is None else self._file.load()
        self._definitions = Definitions(hub.guid, (record.one for record in self._stored), environment.time_ns())
        self.loaded = False
        """Whether the broker's streams were compared with the cluster's definitions."""
        self._missing = MissingDefinitions()
        self._applier = Applier(hub)
        self._refusals = Refusals(hub)
        self._links: dict[int, Node] = {}
        self._unsent: dict[int, Iterator[bytes]] = {}
        self._jobs: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._job: _Job | None = None
        self._waiting: dict[tuple[str, int], tuple[set[int], asyncio.Future[None]]] = {}
        self._stopped = False

    def load(self) -> None:
        """The broker's streams are open: find out which definitions it lacks."""
        lacks = {record.one.key: record.lacks for record in self._stored if record.lacks}
        self._stored = []
        self._find_missing(lacks)
        self._refuse()
        self.loaded = True

    def _find_missing(self, lacks: dict[str, str]) -> None:
        """Find definitions that failed before the start (`lacks`), and streams that are gone: in memory, or lost.

        The other nodes have them, but do not send known definitions again.
        """
        there, now = self._hub.streams.by_name, self._hub.loop.time()
        for definition in self._definitions:
            stream = self._definitions.get(definition.stream)
            gone = (
                definition.spec is not None
                and stream is not None
                and stream.spec is not None
                and definition.stream not in there
            )
            if why := lacks.get(definition.key) or _GONE * gone:
                self._missing.found(definition, why, now)
            if gone and not definition.channel and definition.key not in lacks:
                self._applier.lost.add(definition.key)

    async def prepare(self) -> None:
        """Apply missing definitions before clients connect. Those that take too long are applied afterwards."""
        self._retry_missing()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PATIENCE)

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node
        self._unsent[conn] = portions(self._all())
        self._missing.hurry(self._hub.loop.time())
        self.room(conn)
        self._retry_missing()

    def _all(self) -> Iterator[Definition]:
        """The definitions that exist now, in their version when reached; streams before channels."""
        keys = {definition.key: bool(definition.channel) for definition in self._definitions}
        streams = [key for key, channel in keys.items() if not channel]
        streams += [name for name in self._hub.streams.by_name if name not in keys and name != DEFAULT]
        for key in [*streams, *(key for key, channel in keys.items() if channel)]:
            stream = self._hub.streams.by_name.get(key)
            if (definition := self._definitions.get(key)) is not None:
                yield definition
            elif stream is not None:
                yield self._definitions.found(key, spec_of(stream.config))

    def room(self, conn: int) -> None:
        """A link has room: send more definitions."""
        unsent = self._unsent.get(conn)
        while unsent is not None and self._hub.engine.pending(conn) < _AHEAD:
            if (portion := next(unsent, None)) is None:
                del self._unsent[conn]
                return
            self._hub.engine.node(conn, DEFINED, 0, portion)
        if unsent is not None:
            self._hub.engine.want_room(conn)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        self._unsent.pop(conn, None)
        for key in list(self._waiting):
            self._confirm(conn, *key)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == DEFINED:
            self._add_jobs(*(_Job(definition, conn, number == _NEWS) for definition in read(body)))
            return
        try:
            done = msgspec.msgpack.decode(body, type=_Done)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Stranger(f"done: {error}") from error
        if done.error:
            node = self._links[conn]
            log.warning("%s can't apply %s: %s", node, noun(done.key), done.error)
            self._notice("lacking", done.key, f"{node} can't apply {noun(done.key)}: {done.error}", node)
        self._confirm(conn, done.key, done.stamp)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refusals.stop()
        if self._file is not None:
            await self._file.stop()

    def kill(self) -> None:
        """Close the file without writing."""
        self._stopped = True
        if self._file is not None:
            self._file.kill()

    def figures(self) -> list[dict[str, Any]]:
        """The definitions that this node could not apply."""
        return [
            {
                "stream": missing.definition.stream,
                "channel": missing.definition.channel or None,
                "removed": missing.definition.spec is None,
                "error": missing.error,
                "tries": missing.tries,
            }
            for missing in self._missing
        ]

    # Changes at this node.

    def check_room(self, key: str) -> None:
        """Refuse to exceed the limit of the cluster. Changes of other nodes are not limited here."""
        known = self._definitions.get(key)
        if self._definitions.full and (known is None or known.spec is None) and not self._is_applying:
            raise LimitExceeded(
                f"can't create {noun(key)}: a cluster has at most {MOST} streams and channels, remove some",
                code=Code.TOO_MANY_SUBSCRIPTIONS if "/" in key else Code.TOO_MANY_STREAMS,
            )

    def stream(self, stream: Stream, *, there: bool) -> None:
        """A stream was created, changed or removed."""
        name = stream.name
        self._refusals.end(name)
        if self._is_applying:
            self._take_effect(name)
        elif there:
            self._define([(name, spec_of(stream.config))])
        else:  # and its channels, or they would come back with a new stream of this name
            channels = [channel.key for channel in self._definitions.channels(name)]
            self._define([(key, None) for key in (*channels, name)])
        # The change may allow missing definitions to be applied.
        self._missing.hurry(self._hub.loop.time())
        self._refuse(anew=there)
        self._hub.loop.call_soon(self._retry_missing)

    def channel(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        """A channel was created, changed or removed. `start`: its start position in parts that lack it."""
        key = f"{stream}/{name}"
        if self._is_applying:
            self._take_effect(key)
            return
        before = self._definitions.get(key)
        if start is None:
            start = ("first", None) if before is None or before.spec is None else before.spec["start"]
        self._define([(key, None if settings is None else {"settings": settings, "start": start})])
        self._missing.hurry(self._hub.loop.time(), stream)

    @property
    def _is_applying(self) -> bool:
        """Whether the running task applies a definition of another node, and is not a client's request."""
        return self._job is not None and asyncio.current_task() is self._task

    def _take_effect(self, key: str) -> None:
        """The definition takes effect now, so a client's next change is newer."""
        if self._job is not None and self._job.definition.key == key:
            self._definitions.take(self._job.definition, environment.time_ns())

    def _define(self, made: list[tuple[str, dict[str, Any] | None]]) -> None:
        clock = environment.time_ns()
        changed = [self._definitions.make(key, spec, clock) for key, spec in made]
        for definition in changed:
            self._missing.made(definition.key)
        if self._file is not None:
            self._file.note(*map(Noted, changed))
        if self._links:
            for definition in changed:
                self._waiting[definition.key, definition.stamp] = set(self._links), self._hub.loop.create_future()
            for portion in portions(changed):
                for conn in self._links:
                    self._hub.engine.node(conn, DEFINED, _NEWS, portion)
            self._hub.loop.call_soon(self._hub.flush)

    async def agreed(self, key: str) -> None:
        """Wait until a change is written and every linked node has applied or refused it. Logs late nodes."""
        definition = self._definitions.get(key)
        waits = None if definition is None else self._waiting.get((key, definition.stamp))
        if self._file is not None:
            await self._file.written()
        if definition is None or waits is None:
            return
        late, confirmed = waits
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.shield(confirmed)
        except TimeoutError:
            names = ", ".join(str(self._links[conn]) for conn in late if conn in self._links)
            log.warning("%s has not confirmed %s yet", names, definition)
            self._waiting.pop((key, definition.stamp), None)

    def _confirm(self, conn: int, key: str, stamp: int) -> None:
        late, confirmed = self._waiting.get((key, stamp), (set[int](), None))
        late.discard(conn)
        if not late and confirmed is not None:
            del self._waiting[key, stamp]
            if not confirmed.done():
                confirmed.set_result(None)

    def removed(self, stream: str, channel: str) -> int:
        """When a channel was removed, in microseconds by the clock of that node; 0: unknown, or it exists."""
        definition = self._definitions.get(f"{stream}/{channel}")
        return definition.stamp // 1000 if definition is not None and definition.spec is None else 0

    # Definitions of other nodes, and retries.

    def expire(self, now: float) -> None:  # noqa: ARG002 - reads the clock itself
        self._retry_missing()

    def deadline(self) -> float | None:
        return self._missing.deadline()

    def _retry_missing(self) -> None:
        self._add_jobs(*(_Job(definition) for definition in self._missing.ready(self._hub.loop.time())))
        self._hub.clock.arm()

    def _add_jobs(self, *jobs: _Job) -> None:
        self._jobs.extend(jobs)
        if self._jobs and self._task is None and not self._stopped:
            self._task = self._hub.loop.create_task(self._work(), name="busway definitions")

    async def _work(self) -> None:
        turn = self._hub.loop.time()
        try:
            while self._jobs:
                job = self._jobs.popleft()
                error = await self._apply(job)
                if (job.answer or error) and job.conn in self._links:
                    answer = msgspec.msgpack.encode(_Done(job.definition.key, job.definition.stamp, error))
                    self._hub.engine.node(job.conn, DONE, 0, answer)
                    self._hub.flush()
                if self._hub.loop.time() - turn > _TURN:
                    await asyncio.sleep(0)
                    turn = self._hub.loop.time()
        finally:
            self._task = None
            self._hub.clock.arm()

    async def _apply(self, job: _Job) -> str:
        """Apply one definition. Returns why it failed, or an empty string."""
        definition, definitions = job.definition, self._definitions

        def counts() -> bool:
            return definitions.newer(definition) or definitions.get(definition.key) == definition

        if not (counts() if job.conn == SELF else definitions.newer(definition)):
            return ""
        if definitions.crowded(definition):
            return f"the node knows {MOST_KNOWN} streams and channels already"
        self._job, error = job, ""
        try:
            await self._applier.apply(definition, counts)
        except Unsure as failure:  # applied here; the mirror gets it later
            log.warning("applied %s of another node, but %s", definition, failure.reason)
        except BusError as failure:
            error = failure.reason
        except (ValueError, TypeError, LookupError) as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(failure, None, "a definition of another node")
            error = f"unexpected error: {failure}"
        finally:
            self._job = None
        definitions.take(definition, environment.time_ns())
        known = definitions.get(definition.key)
        if known is not None and known != definition:  # a client has changed it since
            self._jobs.appendleft(_Job(known))
            return ""
        self._finish(definition, "" if definitions.moot(definition) else error)
        return error

    def _finish(self, definition: Definition, lacks: str) -> None:
        """Record that a definition was applied, or why it failed (`lacks`)."""
        now, before = self._hub.loop.time(), self._missing.get(definition.key)
        if self._file is not None and (before is None or (before.definition, before.error) != (definition, lacks)):
            self._file.note(Noted(definition, lacks))
        if lacks:
            if self._missing.failed(definition, lacks, now):
                verb = "remove" if definition.spec is None else "create or change"
                text = f"can't {verb} {definition} as another node has it: {lacks}"
                log.error("%s; will retry", text)
                self._notice("lacking", definition.key, text, None)
        elif before is None:
            return
        else:
            if self._missing.made(definition.key):
                text = f"{definition} is now as the other nodes have it"
                log.warning("%s", text)
                self._notice("caught_up", definition.key, text, None)
            self._missing.hurry(now, definition.stream)
        if not definition.channel:
            self._refuse()

    def _refuse(self, *, anew: bool = False) -> None:
        """Refuse publishes to missing streams, so that they are not stored in another one."""
        wanted = {}
        for missing in self._missing:
            definition = missing.definition
            topics = None if definition.channel or definition.spec is None else definition.spec.get("topics")
            if isinstance(topics, list | tuple) and all(isinstance(topic, str) for topic in topics):
                wanted[definition.stream] = tuple(topics), missing.error
        self._refusals.refuse(wanted, anew=anew)

    def _records(self) -> Iterator[Noted]:
        """All current records of the file."""
        for definition in self._definitions:
            missing = self._missing.get(definition.key)
            yield Noted(definition, missing.error if missing is not None and missing.definition == definition else "")
