"""The primary side of replication: sends this node's streams to its mirrors.

Acknowledgements of streams with safety=mirrored wait for the mirrors. `links` calls this driver for frames, links
and time. The rules are in `primary`. The replicas of another node's streams are the matter of `replica_driver`.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from busway._core import Engine
from busway.broker.channels.state.progress import Stamp
from busway.broker.streams.stream import Stream
from busway.broker.streams.table import StreamTable
from busway.cluster.config import Cluster
from busway.cluster.node import Node
from busway.cluster.protocol import MIRROR, NodeProtocolHandler
from busway.cluster.replication.channel_progress import ChannelProgress
from busway.cluster.replication.channel_recovery import ChannelRecovery, log_restored
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import (
    Ask,
    Changed,
    Checked,
    Gone,
    Got,
    Have,
    Heard,
    Recalled,
    Tail,
    Trouble,
    Word,
    pack,
    read,
)
from busway.cluster.replication.primary import AckWait, Primary, Sending, furthest
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
_LOOK: Final = 5.0
"""Seconds between two checks for removed records and for streams that can be read again."""


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
        progress: ChannelProgress,
        recovery: ChannelRecovery,
        replica: ReplicaDriver | None,
        send: Callable[[int, Word], None],
        *,
        joined: Callable[[str], object],
        follows: Callable[[str], bool],
        notice: Callable[[str, dict[str, Any]], object],
        stopping: Callable[[str], bool],
        removed: Callable[[str], bool],
    ) -> None:
        """`notice` gets events such as `mirror`, and `joined` the guid of each node that becomes a mirror.

        `follows` returns whether a node still owns its streams, so that a mirror may copy them from it. `stopping` returns whether a node has announced that it stops, and `removed` whether a stream was removed here.
        """
        self._runtime = runtime
        self._streams = streams
        self._channels = channels
        self._was_removed = removed
        self.known = known
        self.progress = progress
        self.recovery = recovery
        self.replica = replica
        self.send = send
        self._joined = joined
        self._follows = follows
        self._notice = notice
        self._stopping = stopping
        self._wait = cluster.mirror_wait
        self._numbers = count(1)
        self._linked: dict[int, Node] = {}
        self._primaries: dict[int, Primary] = {}
        """The sending side for each mirror of this node, by link."""
        self._ack_waits: dict[str, AckWait] = {}
        self._suspended: dict[str, float] = {}
        """Streams that refuse publishes until a mirror has answered, and the time at which they stop waiting."""
        self._problems: Problems[tuple[int, str]] = Problems()
        """Problems of streams that a mirror can't copy, by its link and the name of the stream."""
        self._commits: set[Stream] = set()
        self._next_look: float | None = None
        self.alone = 0
        """How often a stream stopped waiting for its mirror."""

    def prepare(self) -> None:
        """The broker's streams are open: replicate them."""
        if self.replica is not None:
            self.replica.prepare()
        for stream in self._streams.by_name.values():
            self._adopt(stream, expected=bool(self.known.guids))
            self._await_mirror(stream)

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
        name = stream.config.name
        if stream.config.safety != "mirrored":
            if self._ack_waits.pop(name, None) is not None:
                stream.log.confirm(None)
                self._commit_soon(stream)
            stream.mirrored = None
        elif name not in self._ack_waits:
            self._ack_waits[name] = AckWait(self._wait, self._now, expected=expected)
            stream.mirrored = expected
            if expected:
                stream.log.confirm(stream.log.written)
            elif not self._primaries:
                self._warn_unmirrored(name)
                self._notice("unmirrored", {"stream": name})
            self._look(stream)

    def _warn_unmirrored(self, name: str) -> None:
        """Warn that this node has no mirror. A node that is a mirror itself warns once only."""
        me = self._runtime.name or f"node {self._runtime.guid[:8]}"
        if self.replica is None or self.replica.target is None:
            text = "stream %r has safety=mirrored but node %s has no mirror: publishes are acknowledged with one copy"
            log.warning(text, name, me)
        elif len(self._ack_waits) == 1:
            text = (
                "node %s mirrors %r but has no mirror itself: publishes here, as in stream %r with safety=mirrored,"
                " are acknowledged with one copy"
            )
            log.warning(text, me, self.replica.target, name)

    def _await_mirror(self, stream: Stream) -> None:
        """Suspend a stream that existed before this start until its mirror has reported its records."""
        if self.known.guids and stream.config.store == "disk":
            stream.wait_for_mirror(yes=True)
            stream.log.rest(True)
            self._suspended[stream.config.name] = self._now + self._wait
        else:
            self._channels().ownership.confirm_end(stream)

    def stream(self, stream: Stream, *, there: bool) -> None:
        """A stream was created, changed or removed."""
        if not there:
            self._removed(stream)
            return
        again = stream.end_unconfirmed and stream.name not in self._suspended  # it replaces one that is lost
        self._adopt(stream, expected=again and bool(self.known.guids))
        if again:
            self._await_mirror(stream)
        self.progress.changed(stream)
        for conn, primary in self._primaries.items():
            if (sending := primary.streams.get(stream.config.name)) is None:
                self._offer(conn, stream, None, None)
            else:
                sending.config = stream.config
                self.send(conn, Changed(sending.number, stream.config))
            self._pump(conn)
        self._look(stream)

    def _removed(self, stream: Stream) -> None:
        name = stream.config.name
        self._ack_waits.pop(name, None)
        self._suspended.pop(name, None)
        self.progress.ended(name)
        self._problems.forget(lambda key: key[1] == name)
        self._runtime.watched.discard(stream.number)
        stream.watcher = None
        for conn, primary in self._primaries.items():
            if name in primary.streams:
                primary.drop(name)
                self.send(conn, Gone(name, removed=True))

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
            self.recovery.keep(list(self._primaries.values()))
            log.warning("mirror %s of this node is not linked any more", node)
            self._notice("mirror_gone", {"name": node.name, "guid": node.guid})
            self.progress.closed(conn, node.guid, ends=self._stopping(node.guid))
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
            case Recalled():
                self._recalled(conn, message)
            case Heard():
                if (primary := self._primaries.get(conn)) and (sending := primary.find(message.number)):
                    self.progress.heard(conn, message, sending.config.name)
            case _ if self.replica is not None:
                self.replica.heard(conn, message)

    def _asked(self, conn: int, ask: Ask) -> None:
        """A mirror asks for all streams, or again for some of them."""
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
        for name in [*streams] if ask.all else [*ask.have]:
            if (stream := streams.get(name)) is not None and not stream.config.in_database:
                self._offer(conn, stream, ask.have.get(name), ask.noted.get(name))
        for name in ask.have:
            if name not in streams:
                self.send(conn, Gone(name, removed=self._was_removed(name)))
        self._look_all()
        self._pump(conn)

    def _offer(self, conn: int, stream: Stream, have: Have | None, noted: Stamp | None) -> None:
        if stream.config.in_database:
            log.info("stream %r is not mirrored: the database that stores it replicates it itself", stream.config.name)
            return
        primary = self._primaries[conn]
        try:
            offer = primary.offer(stream.config, stream.log, have)
        except BusError as error:
            log.warning("stream %r can't be mirrored: %s", stream.config.name, error)
            return
        self.send(conn, offer)
        if (want := primary.want(stream.config.name)) is not None:
            self.send(conn, want)
        self._watch(stream)
        sending = primary.streams[stream.config.name]
        if offer.how != "anew":
            self.recovery.begin(stream, sending, noted)
        self._suspend(conn, sending)
        self._send_progress(conn, stream, sending)

    def _send_progress(self, conn: int, stream: Stream, sending: Sending) -> None:
        """Send the channel journal to a mirror. If the mirror has more entries, ask for those first."""
        self.recovery.ask(conn, sending)
        if not sending.recall and not sending.progress_sent:
            sending.progress_sent = True
            self.progress.begin(conn, self._linked[conn].guid, stream, sending.number)

    def _recalled(self, conn: int, message: Recalled) -> None:
        primary, streams = self._primaries.get(conn), self._streams.by_name
        if primary is None or (sending := primary.find(message.number)) is None:
            return
        stream = streams.get(sending.config.name)
        if stream is not None and self.recovery.heard(stream, sending, self._linked[conn], message):
            self._send_progress(conn, stream, sending)
            self._suspend(conn, sending)

    def _watch(self, stream: Stream) -> None:
        stream.watcher = partial(self._written, stream)
        if stream.log.fileno() is None:  # no thread writes it
            self._runtime.watched.add(stream.number)
            self._runtime.engine.follow_stream(stream.number, yes=True)

    def _answered(self, conn: int, message: Got | Trouble | Checked | Tail) -> None:
        if (primary := self._primaries.get(conn)) is None or (sending := primary.find(message.number)) is None:
            return
        stream = self._streams.by_name.get(sending.config.name)
        try:
            answer = primary.heard(message)
        except BusError as error:
            text = "stream %r can't restore lost records: %s"
            log.error(text, sending.config.name, error)  # noqa: TRY400, a disk error needs no traceback
            primary.drop(sending.config.name)
            self._release(sending.config.name)
            return
        if isinstance(message, Tail) and stream is not None:
            self._runtime.engine.recovered(stream.number, stream.log.next, whole=False)
        self._report_problem(conn, sending, message)
        if answer is not None:
            self.send(conn, answer)
        if sending.stalled:
            log.warning(
                "stream %r can't restore lost records: %s; next attempt in %g s",
                sending.config.name,
                sending.why,
                _LOOK,
            )
        self._continue(conn, sending.config.name)
        if stream is not None:
            self._look(stream)
        self._pump(conn)

    def _continue(self, conn: int, name: str) -> None:
        """Records of a stream may have come back: resume it, or ask for the next."""
        if (sending := self._primaries[conn].streams.get(name)) is not None:
            self._suspend(conn, sending)
            if (stream := self._streams.by_name.get(name)) is not None:
                self._send_progress(conn, stream, sending)

    def _report_problem(self, conn: int, sending: Sending, message: Word) -> None:
        """Log when a mirror can't copy a stream, and when it can again."""
        node, name = self._linked[conn], sending.config.name
        about = {"name": node.name, "guid": node.guid, "stream": name}
        if isinstance(message, Trouble):
            if self._problems.is_new((conn, name), message.text):
                log.warning("%s can't copy stream %r: %s", node, name, message.text)
                self._notice("mirror_trouble", about | {"text": message.text})
        elif sending.open and sending.have >= sending.log.written and self._problems.over((conn, name)):
            log.info("%s can copy stream %r again", node, name)
            self._notice("mirror_copies", about)

    # Sending.

    def _written(self, stream: Stream) -> None:
        """The log of a stream may have written more records."""
        for conn, primary in self._primaries.items():
            if (sending := primary.streams.get(stream.config.name)) is not None and sending.fully_restored:
                primary.settle(sending)
                self._continue(conn, stream.config.name)
            self._pump(conn)
        self._look(stream)
        self._runtime.flush()

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
        for stream in list(self._streams.by_name.values()):
            self._look(stream)

    def _look(self, stream: Stream) -> None:
        name = stream.config.name
        if (ack_wait := self._ack_waits.get(name)) is None:
            return
        mirrored = furthest(self._primaries.values(), name)
        changed = ack_wait.look(self._now, stream.log.written, mirrored)
        stream.mirrored = ack_wait.active
        if ack_wait.active and mirrored is not None:
            stream.log.confirm(mirrored)
            self._commit_soon(stream)
        elif changed:
            stream.log.confirm(None)
            self._commit_soon(stream)
        if changed:
            self._notice("mirrored" if ack_wait.active else "unmirrored", {"stream": name})
        if changed and ack_wait.active:
            log.info("stream %r is mirrored: acknowledgements wait for the mirror", name)
        elif changed:
            self.alone += 1
            log.warning(
                "stream %r has waited %g s for its mirror: publishes are acknowledged without it until it catches up",
                name,
                self._wait,
            )
        if ack_wait.deadline() is not None:
            self._runtime.arm()

    def _commit_soon(self, stream: Stream) -> None:
        """Schedule delivery and answers for records that are safe now. Not at once: an event may be in progress."""
        if not self._commits:
            self._runtime.loop.call_soon(self._commit)
        self._commits.add(stream)

    def _commit(self) -> None:
        streams, self._commits = self._commits, set()
        for stream in streams:
            self._runtime.handle(self._runtime.engine.commit(stream.number))

    # A node that is back.

    def _suspend(self, conn: int, sending: Sending) -> None:
        """Suspend the stream while lost records may come back, and resume it when they are here.

        A stream with safety=mirrored stays suspended until the mirror has all records. Otherwise a repeated publish
        would be acknowledged before the mirror has it.
        """
        name = sending.config.name
        stream, waits = self._streams.by_name.get(name), sending.state in {"check", "mending", "back"}
        if stream is not None:
            self._hold_channels(stream, end_confirmed=not waits)
        behind = name in self._ack_waits and name in self._suspended and sending.have < sending.log.written
        if waits or self.recovery.waits(sending) or (sending.open and behind):
            if name not in self._suspended:
                self._suspend_stream(name, yes=True)
            self._suspended[name] = self._now + self._wait
            self._runtime.arm()
        elif name in self._suspended and self._linked[conn].guid in self.known.guids:
            log_restored(sending, stream, self._linked[conn])
            self._release(name)

    def _hold_channels(self, stream: Stream, *, end_confirmed: bool) -> None:
        """Suspend delivery from the channels until their progress is restored."""
        found = [primary.streams.get(stream.name) for primary in self._primaries.values()]
        sendings = [sending for sending in found if sending is not None]
        ownership = self._channels().ownership
        if end_confirmed:
            ownership.confirm_end(stream)
        ownership.hold(stream, yes=any(map(self.recovery.waits, sendings)))

    def _release(self, name: str) -> None:
        if self._suspended.pop(name, None) is not None:
            if (stream := self._streams.by_name.get(name)) is not None:
                self._channels().ownership.confirm_end(stream)
                self._channels().ownership.hold(stream, yes=False)
            self._suspend_stream(name, yes=False)

    def _suspend_stream(self, name: str, *, yes: bool) -> None:
        if (stream := self._streams.by_name.get(name)) is not None:
            stream.wait_for_mirror(yes=yes)
            if not yes:
                self._runtime.engine.recovered(stream.number, stream.log.next, whole=True)
            stream.log.rest(yes)
            self._commit_soon(stream)

    def _stalls(self, name: str) -> bool:
        """Whether restored records can't be written. The disk would refuse publishes too."""
        found = [primary.streams.get(name) for primary in self._primaries.values()]
        return any(sending.stalled or sending.fully_restored for sending in found if sending is not None)

    # Time.

    @property
    def _now(self) -> float:
        return self._runtime.loop.time()

    def deadline(self) -> float | None:
        due = [ack_wait.deadline() for ack_wait in self._ack_waits.values()]
        due += [*self._suspended.values(), self._next_look if self._primaries else None]
        due.append(self.progress.deadline())
        due.append(None if self.replica is None else self.replica.deadline())
        return min((at for at in due if at is not None), default=None)

    def expire(self, now: float) -> None:
        late = [name for name, until in self._suspended.items() if now >= until]
        for name in [name for name in late if self._stalls(name)]:
            self._suspended[name] = now + _LOOK
            late.remove(name)
        if late:
            log.warning(
                "no mirror connected within %g s: streams %s resume without it;"
                " records that only the mirror has will be dropped from its replica",
                self._wait,
                ", ".join(late),
            )
            for name in late:
                self._release(name)
            self.known.keep(node.guid for conn, node in self._linked.items() if conn in self._primaries)
        self.progress.expire(now)
        self._look_all()
        if self._next_look is not None and now >= self._next_look:
            self._next_look = now + _LOOK
            for conn, primary in self._primaries.items():
                for message in primary.again():
                    self.send(conn, message)
                for name in [stream for stream in primary.streams if stream in self._suspended]:
                    self._continue(conn, name)
                self._pump(conn)
        if self.replica is not None:
            self.replica.expire(now)

    # Figures.

    def figures(self) -> dict[str, Any]:
        """The mirrors of this node, and the node that it mirrors."""
        return {
            "mirrors": [self._mirror_figures(conn, primary) for conn, primary in self._primaries.items()],
            "mirrored": {name: ack_wait.active for name, ack_wait in self._ack_waits.items()},
            "alone": self.alone,
            "to_mirror": None if self.replica is None else self.replica.target,
            "mirror_of": None if self.replica is None else self.replica.figures(),
        }

    def _mirror_figures(self, conn: int, primary: Primary) -> dict[str, Any]:
        node = self._linked[conn]
        streams = {
            name: {
                "state": sending.state,
                "have": sending.have,
                "behind": max(sending.log.written - sending.have, 0),
                "trouble": self._problems.get((conn, name)) or sending.why or None,
            }
            for name, sending in primary.streams.items()
        }
        behind = sum(max(sending.log.written - sending.have, 0) for sending in primary.streams.values())
        return {"name": node.name, "guid": node.guid, "behind": behind, "flying": primary.in_flight, "streams": streams}
