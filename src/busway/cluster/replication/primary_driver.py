"""The primary side of replication: sends the logs of this node's streams to its mirrors.

`links` calls this driver for frames, links and time. The rules are in `primary`. The replicas of another node's streams
are the matter of `replica_driver`.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from busway._core import Engine
from busway.broker.streams.stream import Stream
from busway.broker.streams.table import StreamTable
from busway.cluster.config import Cluster
from busway.cluster.node import Node
from busway.cluster.protocol import MIRROR, NodeProtocolHandler
from busway.cluster.replication.ack_waits import AckWaits
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.lost_records import RETRY, LostRecords
from busway.cluster.replication.messages import (
    Ask,
    Changed,
    Checked,
    Gone,
    Got,
    Have,
    Tail,
    Trouble,
    Word,
    called,
    pack,
    progress_of,
    read,
    stream_of,
)
from busway.cluster.replication.mirrored_logs import MirroredLog, logs_of
from busway.cluster.replication.primary import Primary, Sending, furthest
from busway.cluster.replication.problems import Problems
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.errors import BusError
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a link before the driver stops adding records."""
_LOOK: Final = RETRY
"""Seconds between two checks for removed records and for logs that can be read again."""


def send_to_mirror(engine: Engine, conn: int, message: Word) -> None:
    """Send a message about replication over a link."""
    engine.node(conn, MIRROR, 0, pack(message))


class PrimaryDriver(NodeProtocolHandler):
    """Replication of one broker: its mirrors, and the node that it mirrors."""

    kinds = frozenset({MIRROR})

    def __init__(
        self,
        runtime: "Runtime",
        streams: StreamTable,
        channels: "Callable[[], Channels]",
        cluster: Cluster,
        known: KnownMirrors,
        replica: ReplicaDriver | None,
        send: Callable[[int, Word], None],
        *,
        joined: Callable[[str], object],
        follows: Callable[[str], bool],
        notice: Callable[[str, dict[str, Any]], object],
        removed: Callable[[str], bool],
        channel_removed: Callable[[str, str], int],
    ) -> None:
        """`notice` gets events such as `mirror`, and `joined` the guid of each node that becomes a mirror.

        `follows` returns whether a node still owns its streams, so that a mirror may copy them from it. `removed`
        returns whether a stream was removed here, and `channel_removed` when a channel of a stream was, or 0.
        """
        self._runtime = runtime
        self._streams = streams
        self._channels = channels
        self._was_removed = removed
        self.known = known
        self.replica = replica
        self.send = send
        self._joined = joined
        self._follows = follows
        self._notice = notice
        self._wait = cluster.mirror_wait
        self._numbers = count(1)
        self._linked: dict[int, Node] = {}
        self._primaries: dict[int, Primary] = {}
        """The sending side for each mirror of this node, by link."""
        self._logs: dict[str, MirroredLog] = {}
        """The logs of this node, by name."""
        self.ack_waits = AckWaits(runtime, self._wait, lambda name: furthest(self._primaries.values(), name), notice)
        self._lost = LostRecords(runtime, channels, self._primaries, self.ack_waits, known, self._wait, channel_removed)
        self._problems: Problems[tuple[int, str]] = Problems()
        """Problems of logs that a mirror can't copy, by its link and the name of the log."""
        self._commits: set[Stream] = set()
        self._progress: dict[str, None] = {}
        """Logs of channel progress that have more records to send."""
        self._next_look: float | None = None

    def prepare(self) -> None:
        """The broker's streams are open: replicate them."""
        if self.replica is not None:
            self.replica.prepare()
        for stream in self._streams.by_name.values():
            self._adopt(stream, expected=bool(self.known.guids))
            for mirrored in self._of(stream):
                self._lost.await_mirror(mirrored)

    async def stop(self) -> None:
        """Close the replicas."""
        if self.replica is not None:
            await self.replica.stop()

    def kill(self) -> None:
        """Close the replicas without writing, as if the process was killed."""
        if self.replica is not None:
            self.replica.kill()

    @property
    def copies(self) -> dict[tuple[str, str], Stream]:
        """The replicas of other nodes' streams, by guid of the node and name of the stream; read only."""
        return {} if self.replica is None else self.replica.copies

    @property
    def mirrored(self) -> bool:
        return bool(self._primaries)

    # Streams.

    def _adopt(self, stream: Stream, *, expected: bool = False) -> None:
        """A stream is here, or was changed."""
        if not self._of(stream):
            found = logs_of(self._runtime, stream, self._channels().journal_of(stream), self._commit_soon)
            self._logs.update((mirrored.name, mirrored) for mirrored in found)
        waits = stream.config.safety == "mirrored"
        begins = waits and stream.name not in self.ack_waits.streams
        for mirrored in self._of(stream):
            if not waits and self.ack_waits.end(mirrored):
                mirrored.confirm(None)
            elif begins:
                self.ack_waits.begin(mirrored, expected=expected)
        if begins and not expected and not self._primaries:
            self._warn_unmirrored(stream.name)
            self._notice("unmirrored", {"stream": stream.name})
        self._look(stream)

    def _of(self, stream: Stream) -> list[MirroredLog]:
        names = (stream.name, progress_of(stream.name))
        return [mirrored for name in names if (mirrored := self._logs.get(name)) is not None]

    def _warn_unmirrored(self, name: str) -> None:
        """Warn that this node has no mirror. A node that is a mirror itself warns once only."""
        me = self._runtime.name or f"node {self._runtime.guid[:8]}"
        if self.replica is None or self.replica.target is None:
            text = "stream %r has safety=mirrored but node %s has no mirror: publishes are acknowledged with one copy"
            log.warning(text, name, me)
        elif len(self.ack_waits.streams) == 1:
            text = (
                "node %s mirrors %r but has no mirror itself: publishes here, as in stream %r with safety=mirrored,"
                " are acknowledged with one copy"
            )
            log.warning(text, me, self.replica.target, name)

    def stream(self, stream: Stream, *, there: bool) -> None:
        """A stream was created, changed or removed."""
        if not there:
            self._removed(stream)
            return
        again = stream.end_unconfirmed and stream.name not in self._lost  # it replaces one that is lost
        self._adopt(stream, expected=again and bool(self.known.guids))
        if stream.config.in_database and self._primaries:
            log.info("stream %r is not mirrored: the database that stores it replicates it itself", stream.name)
        for mirrored in self._of(stream) if again else ():
            self._lost.await_mirror(mirrored)
        for mirrored in self._of(stream):
            for conn, primary in self._primaries.items():
                if (sending := primary.logs.get(mirrored.name)) is None:
                    self._offer(conn, mirrored, None)
                else:
                    sending.config = stream.config
                    self.send(conn, Changed(sending.number, stream.config))
                self._pump(conn)
        self._look(stream)

    def _removed(self, stream: Stream) -> None:
        self._runtime.watched.discard(stream.number)
        stream.watcher = None
        self._problems.forget(lambda key: stream_of(key[1]) == stream.name)
        for mirrored in self._of(stream):
            self.ack_waits.end(mirrored)
            self._lost.forget(mirrored.name)
            del self._logs[mirrored.name]
            for primary in self._primaries.values():
                primary.drop(mirrored.name)
        for conn in self._primaries:
            self.send(conn, Gone(stream.name, removed=True))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._linked[conn] = node
        if self.replica is not None and self._follows(node.guid):
            self.replica.opened(conn, node)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002, by the hub's clock
        node = self._linked.pop(conn, None)
        self._problems.forget(lambda key: key[0] == conn)
        if self.replica is not None:
            self.replica.closed(conn)
        if self._primaries.pop(conn, None) is not None and node is not None:
            log.warning("mirror %s of this node is not linked any more", node)
            self._notice("mirror_gone", {"name": node.name, "guid": node.guid})
            self._look_all()

    def room(self, conn: int) -> None:
        if conn in self._primaries:
            self._pump(conn)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002, one kind, no numbers
        message = read(body)
        match message:
            case Ask():
                self._asked(conn, message)
            case Got() | Trouble() | Checked() | Tail():
                self._answered(conn, message)
            case _ if self.replica is not None:
                self.replica.heard(conn, message)

    def _asked(self, conn: int, ask: Ask) -> None:
        """A mirror asks for all logs, or again for some of them."""
        node, streams = self._linked[conn], self._streams.by_name
        if ask.all:
            log.info("%s is a mirror of this node", node)
            self._notice("mirror", {"name": node.name, "guid": node.guid})
            self._primaries[conn] = Primary(self._numbers)
            self.known.add(node.guid)
            self._next_look = self._now + _LOOK
            self._joined(node.guid)
        elif conn not in self._primaries:
            return
        for name in list(self._logs) if ask.all else ask.have:
            if (mirrored := self._logs.get(name)) is not None:
                self._offer(conn, mirrored, ask.have.get(name))
        for stream in dict.fromkeys(map(stream_of, ask.have)):
            if stream not in streams:
                self.send(conn, Gone(stream, removed=self._was_removed(stream)))
        self._look_all()
        self._pump(conn)

    def _offer(self, conn: int, mirrored: MirroredLog, have: Have | None) -> None:
        primary, stream = self._primaries[conn], mirrored.stream
        try:
            offer = primary.offer(mirrored.name, stream.config, mirrored.log, have)
        except BusError as error:
            log.warning("%s can't be mirrored: %s", called(mirrored.name), error)
            return
        self.send(conn, offer)
        if (want := primary.want(mirrored.name)) is not None:
            self.send(conn, want)
        if mirrored.name == stream.name:
            self._watch(stream)
        self._lost.look(mirrored, primary.logs[mirrored.name], self._linked[conn])

    def _watch(self, stream: Stream) -> None:
        stream.watcher = partial(self._written, stream.name)
        if stream.log.fileno() is None:  # no thread writes it
            self._runtime.watched.add(stream.number)
            self._runtime.engine.follow_stream(stream.number, yes=True)

    def _answered(self, conn: int, message: Got | Trouble | Checked | Tail) -> None:
        if (primary := self._primaries.get(conn)) is None or (sending := primary.find(message.number)) is None:
            return
        name, mirrored = sending.name, self._logs[sending.name]
        try:
            answer = primary.heard(message)
        except BusError as error:
            text = "%s can't restore lost records: %s"
            log.error(text, called(name), error)  # noqa: TRY400, a disk error needs no traceback
            primary.drop(name)
            self._lost.resume(name)
            return
        if isinstance(message, Tail):
            mirrored.recovered(whole=False)
        self._report_problem(conn, sending, message)
        if answer is not None:
            self.send(conn, answer)
        if sending.stalled:
            text = "%s can't restore lost records: %s; next attempt in %g s"
            log.warning(text, called(name), sending.why, _LOOK)
        self._continue(conn, mirrored)
        self.ack_waits.look(mirrored)
        self._pump(conn)

    def _continue(self, conn: int, mirrored: MirroredLog) -> None:
        """Lost records of a log may have come back: resume it."""
        if (sending := self._primaries[conn].logs.get(mirrored.name)) is not None:
            self._lost.look(mirrored, sending, self._linked[conn])

    def _report_problem(self, conn: int, sending: Sending, message: Word) -> None:
        """Log when a mirror can't copy a log, and when it can again."""
        node, name = self._linked[conn], sending.name
        about = {"name": node.name, "guid": node.guid, "stream": sending.config.name}
        if isinstance(message, Trouble):
            if self._problems.is_new((conn, name), message.text):
                log.warning("%s can't copy %s: %s", node, called(name), message.text)
                self._notice("mirror_trouble", about | {"text": message.text})
        elif sending.open and sending.have >= sending.log.written and self._problems.over((conn, name)):
            log.info("%s can copy %s again", node, called(name))
            self._notice("mirror_copies", about)

    # Sending.

    def _written(self, name: str) -> None:
        """A log may have written more records."""
        mirrored = self._logs[name]
        for conn, primary in self._primaries.items():
            if (sending := primary.logs.get(name)) is not None and sending.fully_restored:
                primary.settle(sending)
                self._continue(conn, mirrored)
            self._pump(conn)
        self.ack_waits.look(mirrored)
        self._runtime.flush()

    def progress_written(self, stream: Stream) -> None:
        """The progress log of a stream may have written more. Sends it in this turn of the loop, with more like it."""
        name = progress_of(stream.name)
        if name in self._logs and (self._primaries or name in self.ack_waits):
            if not self._progress:
                self._runtime.loop.call_soon(self._send_progress)
            self._progress[name] = None

    def _send_progress(self) -> None:
        names, self._progress = self._progress, {}
        for name in names:
            if name in self._logs:
                self._written(name)

    def stored(self) -> None:
        """More records of a memory stream are safe."""
        for conn in self._primaries:
            self._pump(conn)

    def _pump(self, conn: int) -> None:
        primary, engine = self._primaries[conn], self._runtime.engine
        while engine.pending(conn) < _AHEAD:
            if (part := primary.part()) is None:
                return
            self.send(conn, part)
        engine.want_room(conn)

    # Acknowledgements that wait for a mirror.

    def _look_all(self) -> None:
        for mirrored in list(self._logs.values()):
            self.ack_waits.look(mirrored)

    def _look(self, stream: Stream) -> None:
        for mirrored in self._of(stream):
            self.ack_waits.look(mirrored)

    def _commit_soon(self, stream: Stream) -> None:
        """Schedule delivery and answers for records that are safe now. Not at once: an event may be in progress."""
        if not self._commits:
            self._runtime.loop.call_soon(self._commit)
        self._commits.add(stream)

    def _commit(self) -> None:
        streams, self._commits = self._commits, set()
        for stream in streams:
            self._runtime.handle(self._runtime.engine.commit(stream.number))

    # Time.

    @property
    def _now(self) -> float:
        return self._runtime.loop.time()

    def deadline(self) -> float | None:
        due = [self.ack_waits.deadline(), self._lost.deadline(), self._next_look if self._primaries else None]
        due.append(None if self.replica is None else self.replica.deadline())
        return min((at for at in due if at is not None), default=None)

    def expire(self, now: float) -> None:
        if late := self._lost.expire(now):
            log.warning(
                "no mirror connected within %g s: streams %s resume without it;"
                " records that only the mirror has will be dropped from its replica",
                self._wait,
                ", ".join(late),
            )
            self.known.keep(node.guid for conn, node in self._linked.items() if conn in self._primaries)
        self._look_all()
        if self._next_look is not None and now >= self._next_look:
            self._next_look = now + _LOOK
            for conn, primary in self._primaries.items():
                for message in primary.again():
                    self.send(conn, message)
                for name in [name for name in primary.logs if name in self._lost]:
                    self._continue(conn, self._logs[name])
                self._pump(conn)
        if self.replica is not None:
            self.replica.expire(now)

    # Figures.

    def figures(self) -> dict[str, Any]:
        """The mirrors of this node, and the node that it mirrors."""
        return {
            "mirrors": [self._mirror_figures(conn, primary) for conn, primary in self._primaries.items()],
            "mirrored": {name: stream.mirrored for name, stream in self.ack_waits.streams.items()},
            "alone": self.ack_waits.alone,
            "to_mirror": None if self.replica is None else self.replica.target,
            "mirror_of": None if self.replica is None else self.replica.figures(),
        }

    def _mirror_figures(self, conn: int, primary: Primary) -> dict[str, Any]:
        node = self._linked[conn]
        behind = {name: max(one.log.written - one.have, 0) for name, one in primary.logs.items()}
        streams = {
            name: {
                "state": sending.state,
                "have": sending.have,
                "behind": behind[name],
                "trouble": self._trouble(conn, sending),
            }
            for name, sending in primary.logs.items()
            if name == sending.config.name
        }
        about = {"name": node.name, "guid": node.guid, "behind": sum(behind.values())}
        return {**about, "flying": primary.in_flight, "streams": streams}

    def _trouble(self, conn: int, sending: Sending) -> str | None:
        """Why a stream, or the progress of its channels, can't be copied."""
        progress = self._primaries[conn].logs.get(progress_of(sending.name))
        for one in (sending, progress):
            if one is not None and (text := self._problems.get((conn, one.name)) or one.why):
                return text
        return None
