"""Keeps streams and channels the same on all nodes: sends this node's changes to the others and applies theirs.

`peers` calls it for changes at this node. The rules are in `definitions` and `missing`.
Changes of other nodes are applied one after the other. A client's change can wait until all linked nodes have it.
Changes that can't be applied are reported and retried.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from busway.broker.streams.stream import Stream
from busway.cluster.definitions.apply import Applier, spec_of
from busway.cluster.definitions.definitions import (
    DEFINE,
    MOST,
    MOST_KNOWN,
    Definition,
    Definitions,
    Failures,
    noun,
)
from busway.cluster.definitions.file import DefinitionJournal, Noted, definition_journal
from busway.cluster.definitions.missing import MissingDefinitions
from busway.cluster.definitions.refusal import Refusals
from busway.cluster.links.calls import Calls
from busway.cluster.links.portions import Portions, portions
from busway.cluster.node import Node
from busway.cluster.protocol import NodeProtocolHandler
from busway.common import environment
from busway.errors import BusError, Code, DataFailed, LimitExceeded
from busway.streams import DEFAULT

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime
    from busway.broker.streams.manager import Streams
    from busway.broker.streams.table import StreamTable

log = logging.getLogger("busway.cluster")

Tell: TypeAlias = Callable[[str, str, str, Node | None], object]
"""Reports an event: its kind, the key of the definition, a text, and the other node if it concerns one."""

_PATIENCE: Final = 5.0
"""Seconds that a change waits for other nodes, and a start for missing definitions."""
_TURN: Final = 0.005
"""Seconds of work after which other tasks may run."""
_GONE: Final = "it was missing when this node started"


class _Job(NamedTuple):
    """A definition to apply."""

    definition: Definition
    applied: "asyncio.Future[str] | None" = None
    """Gets the error or an empty text, for the node that has sent the definition. None: this node retries it."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A change of this node that other nodes have not confirmed yet."""

    keys: list[str]
    late: list[int] = field(default_factory=list)
    """The link of each call that has no answer."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Agreement(NodeProtocolHandler):
    """The definitions of all nodes, at one of them."""

    def __init__(
        self,
        runtime: "Runtime",
        table: "StreamTable",
        streams: "Callable[[], Streams]",
        channels: "Callable[[], Channels]",
        calls: Calls,
        notice: Tell,
    ) -> None:
        """`streams` and `channels` return the managers of this broker, which are made later."""
        self._runtime = runtime
        self._table = table
        self._calls = calls
        self._notice = notice
        self._journal = None if runtime.folder is None else definition_journal(runtime.folder)
        self._stored = _load(self._journal)
        known = [record.one for record in self._stored]
        self._definitions = Definitions(runtime.guid, known, environment.time_ns(), self._forget)
        self.loaded = False
        """Whether the broker's streams were compared with the cluster's definitions."""
        self._missing = MissingDefinitions()
        self._applier = Applier(table, streams, channels)
        self._refusals = Refusals(runtime, table)
        self._lists = Portions(runtime, self._send)
        self._jobs: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._job: _Job | None = None
        self._waiting: dict[str, _Wait] = {}
        self._stopped = False
        calls.serve(DEFINE, self._apply_all)

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
        there, now = self._table.by_name, self._runtime.loop.time()
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

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - every node gets all
        self._missing.hurry(self._runtime.loop.time())
        self._lists.begin(conn, self._all())
        self._retry_missing()

    def _all(self) -> Iterator[Definition]:
        """The definitions that exist now, in their version when reached; streams before channels."""
        keys = {definition.key: bool(definition.channel) for definition in self._definitions}
        streams = [key for key, channel in keys.items() if not channel]
        streams += [name for name in self._table.by_name if name not in keys and name != DEFAULT]
        for key in [*streams, *(key for key, channel in keys.items() if channel)]:
            stream = self._table.by_name.get(key)
            if (definition := self._definitions.get(key)) is not None:
                yield definition
            elif stream is not None:
                yield self._definitions.found(key, spec_of(stream.config))

    def room(self, conn: int) -> None:
        self._lists.room(conn)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._lists.closed(conn)

    def _send(self, conn: int, definitions: list[Any], wait: _Wait | None = None) -> None:
        if wait is not None:
            wait.late.append(conn)
        self._calls.send(conn, DEFINE, definitions, partial(self._answered, conn, wait))

    def _answered(self, conn: int, wait: _Wait | None, result: Failures | BusError) -> None:
        """A node has applied definitions, or its link has ended."""
        for key, error in () if isinstance(result, BusError) else result:
            node = self._calls.nodes[conn]
            log.warning("%s can't apply %s: %s", node, noun(key), error)
            self._notice("lacking", key, f"{node} can't apply {noun(key)}: {error}", node)
        if wait is not None:
            wait.late.remove(conn)
            if not wait.late:
                self._stop_waiting(wait)
                wait.over.set()

    def _stop_waiting(self, wait: _Wait) -> None:
        for key in wait.keys:
            if self._waiting.get(key) is wait:
                del self._waiting[key]

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refusals.stop()
        if self._journal is not None:
            await self._journal.stop()

    def kill(self) -> None:
        """Close the file without writing."""
        self._stopped = True
        if self._journal is not None:
            self._journal.kill()

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
        self._missing.hurry(self._runtime.loop.time())
        self._refuse(anew=there)
        self._runtime.loop.call_soon(self._retry_missing)

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
        self._missing.hurry(self._runtime.loop.time(), stream)

    @property
    def _is_applying(self) -> bool:
        """Whether the running task applies a definition of another node, and is not a client's request."""
        return self._job is not None and asyncio.current_task() is self._task

    def _take_effect(self, key: str) -> None:
        """The definition takes effect now, so a client's next change is newer."""
        if self._job is not None and self._job.definition.key == key:
            self._definitions.put(self._job.definition, environment.time_ns())

    def _define(self, made: list[tuple[str, dict[str, Any] | None]]) -> None:
        clock = environment.time_ns()
        changed = [self._definitions.make(key, spec, clock) for key, spec in made]
        for definition in changed:
            self._missing.made(definition.key)
        if self._journal is not None:
            for definition in changed:
                self._journal.store(Noted(definition))
        if self._calls.nodes:
            wait = _Wait([definition.key for definition in changed])
            self._waiting.update(dict.fromkeys(wait.keys, wait))
            for portion in portions(changed):
                for conn in self._calls.nodes:
                    self._send(conn, portion, wait)
            self._runtime.loop.call_soon(self._runtime.flush)

    async def agreed(self, key: str) -> None:
        """Wait until a change is written and every linked node has applied or refused it. Logs late nodes."""
        wait = self._waiting.get(key)
        if self._journal is not None:
            await self._journal.written()
        if wait is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                await wait.over.wait()
        except TimeoutError:
            names = ", ".join(
                str(self._calls.nodes[conn]) for conn in dict.fromkeys(wait.late) if conn in self._calls.nodes
            )
            log.warning("%s has not confirmed %s yet", names, noun(key))
            self._stop_waiting(wait)

    def _forget(self, key: str) -> None:
        if self._journal is not None:
            self._journal.forget(key)

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
        self._add_jobs(_Job(definition) for definition in self._missing.ready(self._runtime.loop.time()))
        self._runtime.arm()

    async def _apply_all(self, _: int, definitions: list[Definition]) -> Failures:
        """Apply definitions of another node. Returns those that failed."""
        jobs = [(definition.key, self._runtime.loop.create_future()) for definition in definitions]
        self._add_jobs(_Job(definition, done) for definition, (_, done) in zip(definitions, jobs, strict=True))
        return [(key, error) for key, done in jobs if (error := await done)]

    def _add_jobs(self, jobs: Iterable[_Job]) -> None:
        self._jobs.extend(jobs)
        if self._jobs and self._task is None and not self._stopped:
            self._task = self._runtime.loop.create_task(self._work(), name="busway definitions")

    async def _work(self) -> None:
        turn = self._runtime.loop.time()
        try:
            while self._jobs:
                job = self._jobs.popleft()
                error = await self._apply(job)
                if job.applied is not None and not job.applied.done():
                    job.applied.set_result(error)
                if self._runtime.loop.time() - turn > _TURN:
                    await asyncio.sleep(0)
                    turn = self._runtime.loop.time()
        finally:
            self._task = None
            self._runtime.arm()

    async def _apply(self, job: _Job) -> str:
        """Apply one definition. Returns why it failed, or an empty string."""
        definition, definitions = job.definition, self._definitions

        def counts() -> bool:
            return definitions.newer(definition) or definitions.get(definition.key) == definition

        if not (counts() if job.applied is None else definitions.newer(definition)):
            return ""
        if definitions.crowded(definition):
            return f"the node knows {MOST_KNOWN} streams and channels already"
        self._job, error = job, ""
        try:
            await self._applier.apply(definition, counts)
        except BusError as failure:
            error = failure.reason
        except (ValueError, TypeError, LookupError) as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001, logged and counted by unexpected()
            self._runtime.unexpected(failure, None, "a definition of another node")
            error = f"unexpected error: {failure}"
        finally:
            self._job = None
        definitions.put(definition, environment.time_ns())
        known = definitions.get(definition.key)
        if known is not None and known != definition:  # a client has changed it since
            self._jobs.appendleft(_Job(known))
            return ""
        self._finish(definition, "" if definitions.moot(definition) else error)
        return error

    def _finish(self, definition: Definition, lacks: str) -> None:
        """Record that a definition was applied, or why it failed (`lacks`)."""
        now, before = self._runtime.loop.time(), self._missing.get(definition.key)
        if self._journal is not None and (before is None or (before.definition, before.error) != (definition, lacks)):
            self._journal.store(Noted(definition, lacks))
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


def _load(journal: DefinitionJournal | None) -> list[Noted]:
    try:
        return [] if journal is None else journal.load()
    except DataFailed as error:
        log.warning("%s; this node takes its streams and channels from the other nodes", error.reason)
        return []
