"""A node and its mirrors: sends them what is stored here, and has acknowledgements wait for them where a stream asks for that.

A driver over origin.py and promise.py; what this node has of another one is `copying`'s.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from busway.broker.channels.state.progress import Stamp
from busway.broker.streams.stream import Stream
from busway.cluster.config import Cluster
from busway.cluster.node import Node
from busway.cluster.protocol import MIRROR, NodeProtocolHandler
from busway.cluster.replication.channel_progress import ChannelProgress
from busway.cluster.replication.channel_recovery import ChannelRecovery, tell_back
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import (
    Ask,
    Back,
    Changed,
    Checked,
    Gone,
    Got,
    Have,
    Heard,
    Recalled,
    Tail,
    Took,
    Trouble,
    Word,
    pack,
    read,
)
from busway.cluster.replication.primary import Primary, Promise, Sending, furthest
from busway.cluster.replication.problems import Problems
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.errors import BusError
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_AHEAD: Final = 4 * MiB
"""Bytes that may wait for a link before it gets more."""
_LOOK: Final = 5.0
"""Seconds between two looks whether something was removed, or can be read again."""


class PrimaryDriver(NodeProtocolHandler):
    """The mirrors of one broker, and what it mirrors itself."""

    kinds = frozenset({MIRROR})

    def __init__(self, hub: "Hub", cluster: Cluster) -> None:
        self._hub = hub
        self._wait = cluster.mirror_wait
        self._numbers = count(1)
        self._linked: dict[int, Node] = {}
        self._origins: dict[int, Primary] = {}
        """By the links to mirrors of this node."""
        self._promises: dict[str, Promise] = {}
        self._resting: dict[str, float] = {}
        """Streams that take nothing new before a mirror was heard, and until when."""
        self._wrong: Problems[tuple[int, str]] = Problems()
        """Streams that a mirror can't copy, by its link."""
        self._commits: set[Stream] = set()
        self._next_look: float | None = None
        self.alone = 0
        """How often a stream went on without its mirror."""
        self.notice: Callable[[str, dict[str, Any]], object] = _nobody
        """Hears what people want to know: `mirror`, `mirror_gone`, `mirror_trouble`, `mirror_copies`, `mirrored`, `unmirrored`, `mirror_missing`, and about what."""
        self.known = KnownMirrors(hub.folder)
        self.noting = ChannelProgress(hub, self.send, cluster.patience)
        self.recalling = ChannelRecovery(hub, self.send)
        self.leaving: Callable[[str], bool] = lambda _: False
        """Whether a node has said that it stops."""
        self.first: Callable[[int, Node, Callable[[], None]], object] = lambda _conn, _node, then: then()
        """Does what is to be done before another node is asked for anything."""
        self.back: Callable[[int, Back | Took], object] = _nobody
        """Hears what a mirror has done with the channels of this node, and that another node has that."""
        self.asked: Callable[[], object] = _nobody
        """Hears that there is a mirror."""
        self.copying = None if hub.folder is None else ReplicaDriver(hub, cluster.mirror_of, hub.folder, self.send)
        if self.copying is not None:
            self.copying.missing = lambda target: self.notice("mirror_missing", {"text": target})
        for stream in hub.streams.by_name.values():
            self._adopt(stream, hopeful=bool(self.known.guids))
            self._expect(stream)

    async def stop(self) -> None:
        """Let go of the copies."""
        if self.copying is not None:
            await self.copying.stop()

    def kill(self) -> None:
        """The same as a process does that is killed."""
        if self.copying is not None:
            self.copying.kill()

    @property
    def copies(self) -> dict[tuple[str, str], Stream]:
        """What is here of other nodes, by their guid and the name of the stream; to be read only."""
        return {} if self.copying is None else self.copying.copies

    @property
    def mirrored(self) -> bool:
        return bool(self._origins)

    # Streams.

    def _adopt(self, stream: Stream, *, hopeful: bool = False) -> None:
        name = stream.config.name
        if stream.config.safety != "mirrored":
            if self._promises.pop(name, None) is not None:
                stream.log.confirm(None)
                self._commit_soon(stream)
            stream.mirrored = None
        elif name not in self._promises:
            self._promises[name] = Promise(self._wait, self._now, hopeful=hopeful)
            stream.mirrored = hopeful
            if hopeful:
                stream.log.confirm(stream.log.written)
            elif not self._origins:
                self._tell_alone(name)
                self.notice("unmirrored", {"stream": name})
            self._look(stream)

    def _tell_alone(self, name: str) -> None:
        """There is no mirror of this node; if it is one itself that may be so on purpose, and is told of the first stream only."""
        me = self._hub.name or f"node {self._hub.guid[:8]}"
        if self.copying is None or self.copying.target is None:
            text = "stream %r is to be mirrored, and nobody mirrors %s: what is published here is acknowledged without"
            log.warning(text, name, me)
        elif len(self._promises) == 1:
            text = (
                "%s mirrors %r, and nobody mirrors %s: what is published here, as in stream %r, is acknowledged without"
            )
            log.warning(text, me, self.copying.target, me, name)

    def _expect(self, stream: Stream) -> None:
        """One that was here before takes nothing new before it is seen what its mirror has."""
        if self.known.guids and stream.config.store == "disk":
            stream.wait_for_mirror(yes=True)
            stream.log.rest(True)
            self._resting[stream.config.name] = self._now + self._wait
        else:
            self._hub.channels.ownership.settle(stream)

    def stream(self, stream: Stream, *, there: bool) -> None:
        """It was made or has other settings, or was removed."""
        if not there:
            self._removed(stream)
            return
        again = stream.unsettled and stream.name not in self._resting  # in the place of one that is lost
        self._adopt(stream, hopeful=again and bool(self.known.guids))
        if again:
            self._expect(stream)
        self.noting.changed(stream)
        for conn, origin in self._origins.items():
            if (sending := origin.streams.get(stream.config.name)) is None:
                self._offer(conn, stream, None, None)
            else:
                sending.config = stream.config
                self.send(conn, Changed(sending.number, stream.config))
            self._pump(conn)
        self._look(stream)

    def _removed(self, stream: Stream) -> None:
        name = stream.config.name
        self._promises.pop(name, None)
        self._resting.pop(name, None)
        self.noting.ended(name)
        self._wrong.forget(lambda key: key[1] == name)
        self._hub.watched.discard(stream.number)
        stream.watcher = None
        for conn, origin in self._origins.items():
            if name in origin.streams:
                origin.drop(name)
                self.send(conn, Gone(name, removed=True))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._linked[conn] = node
        if self.copying is not None:
            # What this one did for that node comes before what it wants to hear from it.
            self.first(conn, node, partial(self._follow, conn, node))

    def _follow(self, conn: int, node: Node) -> None:
        if self.copying is not None and self._linked.get(conn) is node:
            self.copying.opened(conn, node)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002, by the hub's clock
        node = self._linked.pop(conn, None)
        self._wrong.forget(lambda key: key[0] == conn)
        if self.copying is not None:
            self.copying.closed(conn)
        if self._origins.pop(conn, None) is not None and node is not None:
            self.recalling.keep(list(self._origins.values()))
            log.warning("%s is gone, which was a mirror of this node", node)
            self.notice("mirror_gone", {"name": node.name, "guid": node.guid})
            self.noting.closed(conn, node.guid, ends=self.leaving(node.guid))
            self._look_all()

    def room(self, conn: int) -> None:
        if conn in self._origins:
            self._pump(conn)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002, one kind, no numbers
        word = read(body)
        match word:
            case Ask():
                self._asked(conn, word)
            case Got() | Trouble() | Checked() | Tail():
                self._answered(conn, word)
            case Recalled():
                self._recalled(conn, word)
            case Heard():
                if (origin := self._origins.get(conn)) and (sending := origin.find(word.number)):
                    self.noting.heard(conn, word, sending.config.name)
            case Back() | Took():
                self.back(conn, word)
            case _ if self.copying is not None:
                self.copying.heard(conn, word)

    def _asked(self, conn: int, ask: Ask) -> None:
        """A mirror is here, or wants some streams once more."""
        node, streams = self._linked[conn], self._hub.streams.by_name
        if ask.all:
            log.info("%s is a mirror of this node", node)
            self.notice("mirror", {"name": node.name, "guid": node.guid})
            self._origins[conn] = Primary(self._numbers)
            self.known.add(node.guid)
            self._next_look = self._now + _LOOK
            self.asked()
        elif conn not in self._origins:
            return
        for name in [*streams] if ask.all else [*ask.have]:
            if (stream := streams.get(name)) is not None and not stream.config.in_database:
                self._offer(conn, stream, ask.have.get(name), ask.noted.get(name))
        for name in ask.have:
            if name not in streams:
                self.send(conn, Gone(name, removed=self._hub.streams.has_ended(name)))
        self._look_all()
        self._pump(conn)

    def _offer(self, conn: int, stream: Stream, have: Have | None, noted: Stamp | None) -> None:
        if stream.config.in_database:
            log.info("stream %r is in a database, and not mirrored: that is its own matter", stream.config.name)
            return
        origin = self._origins[conn]
        try:
            offer = origin.offer(stream.config, stream.log, have)
        except BusError as error:
            log.warning("stream %r can't be mirrored: %s", stream.config.name, error)
            return
        self.send(conn, offer)
        if (want := origin.want(stream.config.name)) is not None:
            self.send(conn, want)
        self._watch(stream)
        sending = origin.streams[stream.config.name]
        if offer.how != "anew":
            self.recalling.begin(stream, sending, noted)
        self._rest(conn, sending)
        self._tell_notes(conn, stream, sending)

    def _tell_notes(self, conn: int, stream: Stream, sending: Sending) -> None:
        """A mirror hears of the channels, but not before it has told what it knows of them if that is more."""
        self.recalling.ask(conn, sending)
        if not sending.recall and not sending.noting:
            sending.noting = True
            self.noting.begin(conn, self._linked[conn].guid, stream, sending.number)

    def _recalled(self, conn: int, word: Recalled) -> None:
        origin, streams = self._origins.get(conn), self._hub.streams.by_name
        if origin is None or (sending := origin.find(word.number)) is None:
            return
        stream = streams.get(sending.config.name)
        if stream is not None and self.recalling.heard(stream, sending, self._linked[conn], word):
            self._tell_notes(conn, stream, sending)
            self._rest(conn, sending)

    def _watch(self, stream: Stream) -> None:
        stream.watcher = partial(self._written, stream)
        if stream.log.fileno() is None:  # no thread writes it
            self._hub.watched.add(stream.number)
            self._hub.engine.follow_stream(stream.number, yes=True)

    def _answered(self, conn: int, word: Got | Trouble | Checked | Tail) -> None:
        if (origin := self._origins.get(conn)) is None or (sending := origin.find(word.number)) is None:
            return
        stream = self._hub.streams.by_name.get(sending.config.name)
        try:
            answer = origin.heard(word)
        except BusError as error:
            log.error("stream %r can't get back what it lost: %s", sending.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
            origin.drop(sending.config.name)
            self._release(sending.config.name)
            return
        if isinstance(word, Tail) and stream is not None:
            self._hub.engine.recovered(stream.number, stream.log.next, whole=False)
        self._tell_trouble(conn, sending, word)
        if answer is not None:
            self.send(conn, answer)
        if sending.stalled:
            log.warning(
                "stream %r can't get back what it lost: %s; tried again in %g s",
                sending.config.name,
                sending.why,
                _LOOK,
            )
        self._go_on(conn, sending.config.name)
        if stream is not None:
            self._look(stream)
        self._pump(conn)

    def _go_on(self, conn: int, name: str) -> None:
        """Something of a stream may have come back."""
        if (sending := self._origins[conn].streams.get(name)) is not None:
            self._rest(conn, sending)
            if (stream := self._hub.streams.by_name.get(name)) is not None:
                self._tell_notes(conn, stream, sending)

    def _tell_trouble(self, conn: int, sending: Sending, word: Word) -> None:
        """Tell when a mirror can't copy a stream, and when it can again."""
        node, name = self._linked[conn], sending.config.name
        about = {"name": node.name, "guid": node.guid, "stream": name}
        if isinstance(word, Trouble):
            if self._wrong.is_new((conn, name), word.text):
                log.warning("%s can't copy stream %r: %s", node, name, word.text)
                self.notice("mirror_trouble", about | {"text": word.text})
        elif sending.open and sending.have >= sending.log.written and self._wrong.over((conn, name)):
            log.info("%s can copy stream %r again", node, name)
            self.notice("mirror_copies", about)

    # What it sends.

    def send(self, conn: int, word: Word) -> None:
        self._hub.engine.node(conn, MIRROR, 0, pack(word))

    def _written(self, stream: Stream) -> None:
        """More of a stream may be written."""
        for conn, origin in self._origins.items():
            if (sending := origin.streams.get(stream.config.name)) is not None and sending.whole:
                origin.settle(sending)
                self._go_on(conn, stream.config.name)
            self._pump(conn)
        self._look(stream)
        self._hub.flush()

    def stored(self) -> None:
        """More of a stream is safe that nobody writes elsewhere."""
        for conn in self._origins:
            self._pump(conn)

    def _pump(self, conn: int) -> None:
        origin, engine = self._origins[conn], self._hub.engine
        while engine.pending(conn) < _AHEAD:
            if (part := origin.part()) is None:
                return
            self.send(conn, part)
        engine.want_room(conn)

    # What waits for a mirror.

    def _look_all(self) -> None:
        for stream in list(self._hub.streams.by_name.values()):
            self._look(stream)

    def _look(self, stream: Stream) -> None:
        name = stream.config.name
        if (promise := self._promises.get(name)) is None:
            return
        mirrored = furthest(self._origins.values(), name)
        changed = promise.look(self._now, stream.log.written, mirrored)
        stream.mirrored = promise.kept
        if promise.kept and mirrored is not None:
            stream.log.confirm(mirrored)
            self._commit_soon(stream)
        elif changed:
            stream.log.confirm(None)
            self._commit_soon(stream)
        if changed:
            self.notice("mirrored" if promise.kept else "unmirrored", {"stream": name})
        if changed and promise.kept:
            log.info("stream %r is mirrored: acknowledgements wait for that", name)
        elif changed:
            self.alone += 1
            log.warning(
                "stream %r has waited %g s for its mirror: messages are acknowledged without it until it has all of them",
                name,
                self._wait,
            )
        if promise.deadline() is not None:
            self._hub.clock.arm()

    def _commit_soon(self, stream: Stream) -> None:
        """Have what is safe now delivered and answered; not at once, since an event may be in the middle of it."""
        if not self._commits:
            self._hub.loop.call_soon(self._commit)
        self._commits.add(stream)

    def _commit(self) -> None:
        streams, self._commits = self._commits, set()
        for stream in streams:
            self._hub.handle(self._hub.engine.commit(stream.number))

    # What a node does when it comes back.

    def _rest(self, conn: int, sending: Sending) -> None:
        """Nothing new is taken while it is seen whether something old comes back.

        And nothing that was sent again: of a stream that is to be mirrored that would be acknowledged before the mirror has it.
        """
        name = sending.config.name
        stream, waits = self._hub.streams.by_name.get(name), sending.state in {"check", "mending", "back"}
        if stream is not None:
            self._hand_out(stream, settled=not waits)
        behind = name in self._promises and name in self._resting and sending.have < sending.log.written
        if waits or self.recalling.waits(sending) or (sending.open and behind):
            if name not in self._resting:
                self._stream_rests(name, yes=True)
            self._resting[name] = self._now + self._wait
            self._hub.clock.arm()
        elif name in self._resting and self._linked[conn].guid in self.known.guids:
            tell_back(sending, stream, self._linked[conn])
            self._release(name)

    def _hand_out(self, stream: Stream, *, settled: bool) -> None:
        """Nothing of a stream is handed out while it is seen what its channels have done; where they are counts when its records are back."""
        some = [one for origin in self._origins.values() if (one := origin.streams.get(stream.name)) is not None]
        standing = self._hub.channels.ownership
        if settled:
            standing.settle(stream)
        standing.hold(stream, yes=any(map(self.recalling.waits, some)))

    def _release(self, name: str) -> None:
        if self._resting.pop(name, None) is not None:
            if (stream := self._hub.streams.by_name.get(name)) is not None:
                self._hub.channels.ownership.settle(stream)
                self._hub.channels.ownership.hold(stream, yes=False)
            self._stream_rests(name, yes=False)

    def _stream_rests(self, name: str, *, yes: bool) -> None:
        if (stream := self._hub.streams.by_name.get(name)) is not None:
            stream.wait_for_mirror(yes=yes)
            if not yes:
                self._hub.engine.recovered(stream.number, stream.log.next, whole=True)
            stream.log.rest(yes)
            self._commit_soon(stream)

    def _stalls(self, name: str) -> bool:
        """Its disk does not take what comes back: it would not take anything else either."""
        some = [one for origin in self._origins.values() if (one := origin.streams.get(name)) is not None]
        return any(one.stalled or one.whole for one in some)

    # Time.

    @property
    def _now(self) -> float:
        return self._hub.loop.time()

    def deadline(self) -> float | None:
        due = [promise.deadline() for promise in self._promises.values()]
        due += [*self._resting.values(), self._next_look if self._origins else None]
        due.append(self.noting.deadline())
        due.append(None if self.copying is None else self.copying.deadline())
        return min((one for one in due if one is not None), default=None)

    def expire(self, now: float) -> None:
        late = [name for name, until in self._resting.items() if now >= until]
        for name in [name for name in late if self._stalls(name)]:
            self._resting[name] = now + _LOOK
            late.remove(name)
        if late:
            log.warning(
                "no mirror has come within %g s: %s go on without; what only a mirror has behind their end is not taken back",
                self._wait,
                ", ".join(late),
            )
            for name in late:
                self._release(name)
            self.known.keep(node.guid for conn, node in self._linked.items() if conn in self._origins)
        self.noting.expire(now)
        self._look_all()
        if self._next_look is not None and now >= self._next_look:
            self._next_look = now + _LOOK
            for conn, origin in self._origins.items():
                for word in origin.again():
                    self.send(conn, word)
                for name in [one for one in origin.streams if one in self._resting]:
                    self._go_on(conn, name)
                self._pump(conn)
        if self.copying is not None:
            self.copying.expire(now)

    # What it is.

    def figures(self) -> dict[str, Any]:
        """The mirrors of this node, and what it mirrors itself."""
        return {
            "mirrors": [self._shown(conn, origin) for conn, origin in self._origins.items()],
            "mirrored": {name: promise.kept for name, promise in self._promises.items()},
            "alone": self.alone,
            "to_mirror": None if self.copying is None else self.copying.target,
            "mirror_of": None if self.copying is None else self.copying.figures(),
        }

    def _shown(self, conn: int, origin: Primary) -> dict[str, Any]:
        node = self._linked[conn]
        streams = {
            name: {
                "state": one.state,
                "have": one.have,
                "behind": max(one.log.written - one.have, 0),
                "trouble": self._wrong.get((conn, name)) or one.why or None,
            }
            for name, one in origin.streams.items()
        }
        behind = sum(max(one.log.written - one.have, 0) for one in origin.streams.values())
        return {"name": node.name, "guid": node.guid, "behind": behind, "flying": origin.flying, "streams": streams}


def _nobody(*_: object) -> None:
    """Nobody listens yet."""
