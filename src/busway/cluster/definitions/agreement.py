"""Streams and channels are the same on all nodes: tells the others what is made here, and makes what they tell.

A driver over definitions.py and lacking.py. What is told is done one after the other; who has made something can wait until all have it. What
can't be done here stays known, is told to people, and is tried again.
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
"""Kind, key and text of what has happened, and the node if it was another one."""

_PATIENCE: Final = 5.0
"""Seconds that who makes something waits for other nodes, and a start for what is to be made."""
_TURN: Final = 0.005
"""Seconds after which others have their turn."""
_AHEAD: Final = 256 * KiB
"""Bytes that may wait for a link before it is told more of what was there when it came."""
_GONE: Final = "it was not here when this node was started"
_NEWS: Final = 1
"""The number of a frame with what was made just now: it is answered."""


class _Done(msgspec.Struct, array_like=True, frozen=True):
    key: str
    stamp: int
    error: str = ""


class _Job(NamedTuple):
    """Something to be made."""

    one: Definition
    conn: int = SELF
    """Who tells it; SELF: it is what counts here, and was not done, or undone by another word."""
    answer: bool = False


class Agreement(NodeProtocolHandler):
    """The streams and channels of all nodes, seen from one of them."""

    kinds = frozenset({DEFINED, DONE})

    def __init__(self, hub: "Hub", notice: Tell) -> None:
        self._hub = hub
        self._notice = notice
        self._file = None if hub.folder is None else DefinitionFile(hub.folder, self._noted)
        self._stored = [] if self._file is None else self._file.load()
        self._definitions = Definitions(hub.guid, (each.one for each in self._stored), environment.time_ns())
        self.loaded = False
        """Whether the streams of the broker were compared with what the cluster has."""
        self._lacking = MissingDefinitions()
        self._applying = Applier(hub)
        self._refusing = Refusals(hub)
        self._links: dict[int, Node] = {}
        self._telling: dict[int, Iterator[bytes]] = {}
        self._todo: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._job: _Job | None = None
        self._waiting: dict[tuple[str, int], tuple[set[int], asyncio.Future[None]]] = {}
        self._stopped = False

    def load(self) -> None:
        """The broker's streams are open: find out which definitions it lacks."""
        lacks = {each.one.key: each.lacks for each in self._stored if each.lacks}
        self._stored = []
        self._miss(lacks)
        self._refuse()
        self.loaded = True

    def _miss(self, lacks: dict[str, str]) -> None:
        """What was not here before the start (and why), and what is not here any more: streams in memory, and those that somebody has lost.

        The other nodes have them, and do not tell again what is known here.
        """
        there, now = self._hub.streams.by_name, self._hub.loop.time()
        for one in self._definitions:
            stream = self._definitions.get(one.stream)
            gone = one.spec is not None and stream is not None and stream.spec is not None and one.stream not in there
            if why := lacks.get(one.key) or _GONE * gone:
                self._lacking.found(one, why, now)
            if gone and not one.channel and one.key not in lacks:
                self._applying.lost.add(one.key)

    async def prepare(self) -> None:
        """Make what is not here and should be, before clients come; what takes too long is made while they are here."""
        self._try_again()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PATIENCE)

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node
        self._telling[conn] = portions(self._all())
        self._lacking.hurry(self._hub.loop.time())
        self.room(conn)
        self._try_again()

    def _all(self) -> Iterator[Definition]:
        """What there is now, and how it is when its turn has come; the streams first, for the channels are in them."""
        keys = {one.key: bool(one.channel) for one in self._definitions}
        streams = [key for key, channel in keys.items() if not channel]
        streams += [name for name in self._hub.streams.by_name if name not in keys and name != DEFAULT]
        for key in [*streams, *(key for key, channel in keys.items() if channel)]:
            stream = self._hub.streams.by_name.get(key)
            if (one := self._definitions.get(key)) is not None:
                yield one
            elif stream is not None:
                yield self._definitions.found(key, spec_of(stream.config))

    def room(self, conn: int) -> None:
        """Little waits for a link: it is told more."""
        told = self._telling.get(conn)
        while told is not None and self._hub.engine.pending(conn) < _AHEAD:
            if (portion := next(told, None)) is None:
                del self._telling[conn]
                return
            self._hub.engine.node(conn, DEFINED, 0, portion)
        if told is not None:
            self._hub.engine.want_room(conn)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        self._telling.pop(conn, None)
        for key in list(self._waiting):
            self._heard_of(conn, *key)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == DEFINED:
            self._do(*(_Job(one, conn, number == _NEWS) for one in read(body)))
            return
        try:
            done = msgspec.msgpack.decode(body, type=_Done)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Stranger(f"done: {error}") from error
        if done.error:
            node = self._links[conn]
            log.warning("%s can't have %s: %s", node, noun(done.key), done.error)
            self._notice("lacking", done.key, f"{node} can't have {noun(done.key)}: {done.error}", node)
        self._heard_of(conn, done.key, done.stamp)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refusing.stop()
        if self._file is not None:
            await self._file.stop()

    def kill(self) -> None:
        """Let go of the file, without writing."""
        self._stopped = True
        if self._file is not None:
            self._file.kill()

    def figures(self) -> list[dict[str, Any]]:
        """What is not here as it should be."""
        return [
            {
                "stream": lack.one.stream,
                "channel": lack.one.channel or None,
                "removed": lack.one.spec is None,
                "error": lack.error,
                "tries": lack.tries,
            }
            for lack in self._lacking
        ]

    # What is made here.

    def check_room(self, key: str) -> None:
        """Refuse to make more than a cluster may have; what others have made is taken."""
        known = self._definitions.get(key)
        if self._definitions.full and (known is None or known.spec is None) and not self._ours:
            raise LimitExceeded(
                f"{noun(key)} is one too many: a cluster has {MOST} streams and channels at most, remove some",
                code=Code.TOO_MANY_SUBSCRIPTIONS if "/" in key else Code.TOO_MANY_STREAMS,
            )

    def stream(self, stream: Stream, *, there: bool) -> None:
        """One was made, changed or removed."""
        name = stream.name
        self._refusing.end(name)
        if self._ours:
            self._taken(name)
        elif there:
            self._define([(name, spec_of(stream.config))])
        else:  # and all its channels, or they were back with another stream of this name
            gone = [one.key for one in self._definitions.channels(name)]
            self._define([(key, None) for key in (*gone, name)])
        # It may have been in the way, or what is lacking may be in it.
        self._lacking.hurry(self._hub.loop.time())
        self._refuse(anew=there)
        self._hub.loop.call_soon(self._try_again)

    def channel(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        """One was made (with the place where it begins in parts that don't have it), changed, or removed."""
        key = f"{stream}/{name}"
        if self._ours:
            self._taken(key)
            return
        before = self._definitions.get(key)
        if start is None:
            start = ("first", None) if before is None or before.spec is None else before.spec["start"]
        self._define([(key, None if settings is None else {"settings": settings, "start": start})])
        self._lacking.hurry(self._hub.loop.time(), stream)

    @property
    def _ours(self) -> bool:
        """Whether this is what another node has told, being done here; and not what a client wants meanwhile."""
        return self._job is not None and asyncio.current_task() is self._task

    def _taken(self, key: str) -> None:
        """It is so from this moment on: what a client does next with it is later."""
        if self._job is not None and self._job.one.key == key:
            self._definitions.take(self._job.one, environment.time_ns())

    def _define(self, made: list[tuple[str, dict[str, Any] | None]]) -> None:
        clock = environment.time_ns()
        ones = [self._definitions.make(key, spec, clock) for key, spec in made]
        for one in ones:
            self._lacking.made(one.key)
        if self._file is not None:
            self._file.note(*map(Noted, ones))
        if self._links:
            for one in ones:
                self._waiting[one.key, one.stamp] = set(self._links), self._hub.loop.create_future()
            for portion in portions(ones):
                for conn in self._links:
                    self._hub.engine.node(conn, DEFINED, _NEWS, portion)
            self._hub.loop.call_soon(self._hub.flush)

    async def settled(self, key: str) -> None:
        """Return when it is written that it was made here last, and every linked node has it, or says why not, or takes too long, which is told."""
        one = self._definitions.get(key)
        waits = None if one is None else self._waiting.get((key, one.stamp))
        if self._file is not None:
            await self._file.written()
        if one is None or waits is None:
            return
        late, told = waits
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.shield(told)
        except TimeoutError:
            names = ", ".join(str(self._links[conn]) for conn in late if conn in self._links)
            log.warning("%s is not known yet to %s", one, names)
            self._waiting.pop((key, one.stamp), None)

    def _heard_of(self, conn: int, key: str, stamp: int) -> None:
        late, told = self._waiting.get((key, stamp), (set[int](), None))
        late.discard(conn)
        if not late and told is not None:
            del self._waiting[key, stamp]
            if not told.done():
                told.set_result(None)

    def removed(self, stream: str, channel: str) -> int:
        """When a channel was removed, by the clock of who did so, in microseconds; 0: that is not known, or it is there."""
        one = self._definitions.get(f"{stream}/{channel}")
        return one.stamp // 1000 if one is not None and one.spec is None else 0

    # What others tell, and what could not be done before.

    def expire(self, now: float) -> None:  # noqa: ARG002 - it is asked for again
        self._try_again()

    def deadline(self) -> float | None:
        return self._lacking.deadline()

    def _try_again(self) -> None:
        self._do(*(_Job(one) for one in self._lacking.ready(self._hub.loop.time())))
        self._hub.clock.arm()

    def _do(self, *jobs: _Job) -> None:
        self._todo.extend(jobs)
        if self._todo and self._task is None and not self._stopped:
            self._task = self._hub.loop.create_task(self._work(), name="busway definitions")

    async def _work(self) -> None:
        turn = self._hub.loop.time()
        try:
            while self._todo:
                job = self._todo.popleft()
                error = await self._deal(job)
                if (job.answer or error) and job.conn in self._links:
                    said = msgspec.msgpack.encode(_Done(job.one.key, job.one.stamp, error))
                    self._hub.engine.node(job.conn, DONE, 0, said)
                    self._hub.flush()
                if self._hub.loop.time() - turn > _TURN:
                    await asyncio.sleep(0)
                    turn = self._hub.loop.time()
        finally:
            self._task = None
            self._hub.clock.arm()

    async def _deal(self, job: _Job) -> str:
        """Make one thing as it should be; why it can't be."""
        one, definitions = job.one, self._definitions

        def counts() -> bool:
            return definitions.newer(one) or definitions.get(one.key) == one

        if not (counts() if job.conn == SELF else definitions.newer(one)):
            return ""
        if definitions.crowded(one):
            return f"there are {MOST_KNOWN} streams and channels already"
        self._job, error = job, ""
        try:
            await self._applying.apply(one, counts)
        except Unsure as failure:  # it is there; the mirror hears of it when it is back
            log.warning("%s is made as another node has it, but %s", one, failure.reason)
        except BusError as failure:
            error = failure.reason
        except (ValueError, TypeError, LookupError) as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(failure, None, "the definitions of another node")
            error = f"unexpected error: {failure}"
        finally:
            self._job = None
        definitions.take(one, environment.time_ns())
        known = definitions.get(one.key)
        if known is not None and known != one:  # a client has made something else of it meanwhile, and later
            self._todo.appendleft(_Job(known))
            return ""
        self._became(one, "" if definitions.moot(one) else error)
        return error

    def _became(self, one: Definition, lacks: str) -> None:
        """It was done, or could not be."""
        now, before = self._hub.loop.time(), self._lacking.get(one.key)
        if self._file is not None and (before is None or (before.one, before.error) != (one, lacks)):
            self._file.note(Noted(one, lacks))
        if lacks:
            if self._lacking.failed(one, lacks, now):
                text = f"{one} can't be {'removed' if one.spec is None else 'made'} as another node has it: {lacks}"
                log.error("%s; it is tried again", text)
                self._notice("lacking", one.key, text, None)
        elif before is None:
            return
        else:
            if self._lacking.made(one.key):
                text = f"{one} is as the other nodes have it at last"
                log.warning("%s", text)
                self._notice("caught_up", one.key, text, None)
            self._lacking.hurry(now, one.stream)
        if not one.channel:
            self._refuse()

    def _refuse(self, *, anew: bool = False) -> None:
        """What is published to a stream that should be here must not go elsewhere."""
        wanted = {}
        for lack in self._lacking:
            topics = None if lack.one.channel or lack.one.spec is None else lack.one.spec.get("topics")
            if isinstance(topics, list | tuple) and all(isinstance(topic, str) for topic in topics):
                wanted[lack.one.stream] = tuple(topics), lack.error
        self._refusing.refuse(wanted, anew=anew)

    def _noted(self) -> Iterator[Noted]:
        """All that is to be in the file."""
        for one in self._definitions:
            lack = self._lacking.get(one.key)
            yield Noted(one, lack.error if lack is not None and lack.one == one else "")
