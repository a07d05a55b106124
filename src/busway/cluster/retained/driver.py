"""Replicates retained messages between nodes: sends this node's to the others, and stores theirs.

The broker's retained messages call it for local changes, and `links` for frames. The rules are in `replica`.
"""

import logging
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.flags import PIN, POST
from busway.broker.peers import RetainedPeers
from busway.broker.retained.store import Key, RetainedMessage, Version
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import KEPT, NodeProtocolHandler
from busway.cluster.retained.replica import All, Drop, Put, RetainedReplica, Sum, Word, pack, put, read, sum_of, version
from busway.settings import KiB, MiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_PORTION: Final = 256 * KiB
_FRAME: Final = 16
"""Bytes of a PUBLISH before its body."""
_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a new link before it gets more messages."""


class RetainedDriver(NodeProtocolHandler, RetainedPeers):
    """The retained messages of a cluster, at one of its nodes."""

    kinds = frozenset({KEPT})

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._replica = RetainedReplica(hub.settings.grace)
        self._links: dict[int, str] = {}
        self._frames: dict[int, int] = {}
        """The longest message that the node of a link accepts."""
        self._unsent: dict[int, Iterator[Word]] = {}
        self._clients: dict[tuple[int, str], int] = {}

    # Changes at this node.

    def prepare(self) -> None:
        """The broker's pins are loaded: remember which ones were removed."""
        for key, since in self._hub.retained.marks.items():
            self._replica.taken_back(key, since)

    def added(self, message: RetainedMessage) -> None:
        """A client of this node has posted or pinned something."""
        if message.flags & POST:
            self._replica.own(message.key)
        self._broadcast(put(message))

    def removed_since(self, key: Key) -> Version | None:
        """The version at which a pin was removed at any node; None: it was not."""
        return self._replica.mark(key)

    def at_another_node(self, key: Key) -> bool:
        """A client of this node is gone. Returns whether another node has the client and its post."""
        if not self._replica.disown(key):
            return False
        owner, topic, fields = key
        self._broadcast(Drop(owner, topic, fields, (0, 0, 0)))
        return True

    def removed(self, gone: Sequence[RetainedMessage], by: RetainedMessage | None = None) -> None:
        """Messages are not retained any more: `by` removed them, or their client is gone."""
        when = None if by is None else version(by)
        for message in gone:
            owner, topic, fields = message.key
            # The clock of the remover may be behind that of the sender.
            since = version(message) if when is None else max(when, version(message))
            if message.flags & PIN:
                self._replica.taken_back(message.key, since)
            else:
                self._replica.disown(message.key)
            self._broadcast(Drop(owner, topic, fields, since))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        """A link is open: send the full list in portions."""
        self._links[conn], self._frames[conn] = node.guid, node.frame
        self._replica.link_opened(node.guid)
        self._send(conn, self._replica.mine(self._hub.retained.box))

    def room(self, conn: int) -> None:
        """A link has room: send more messages."""
        words = self._unsent.get(conn)
        while words is not None and self._hub.engine.pending(conn) < _AHEAD:
            size, batch = 0, list[Word]()
            for unsent in islice(words, 4096):
                batch.append(word := self._fit(conn, unsent))
                size += len(word.body) if isinstance(word, Put) else 100
                if size >= _PORTION:
                    break
            if not batch:
                del self._unsent[conn]
                return
            self._hub.engine.node(conn, KEPT, 0, pack(batch))
        if words is not None:
            self._hub.engine.want_room(conn)

    def closed(self, conn: int, now: float) -> None:
        self._unsent.pop(conn, None)
        self._frames.pop(conn, None)
        if (guid := self._links.pop(conn, None)) is not None:
            self._replica.link_closed(guid, now)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind, no numbers
        """Handle changes of another node. Raises Stranger."""
        guid = self._links[conn]
        answers: list[Word] = []
        for word in read(body):
            match word:
                case Put():
                    answers += self._put(conn, guid, word)
                case Drop():
                    old = self._hub.retained.box.get(word.key)
                    if isinstance(word.owner, str) and self._replica.new_mark(word, old):
                        self._hub.retained.mark_removed(word.key, word.version)
                    if self._replica.received_drop(guid, word, old):
                        self._hub.retained.remove_remote(word.key)
                case All():
                    self._withdraw(self._replica.received_all(guid))
                case Sum() if conn not in self._unsent and word.pins != sum_of(self._hub.retained.box).pins:
                    self._send(conn, self._all_pins(answer=not word.answer))
        if answers:
            self._hub.engine.node(conn, KEPT, 0, pack(answers))

    def expire(self, now: float) -> None:
        if (due := self._replica.deadline()) is not None and due <= now:
            self._withdraw(self._replica.expire(now))
            self._broadcast(sum_of(self._hub.retained.box))

    def deadline(self) -> float | None:
        return self._replica.deadline()

    # Inside.

    def _send(self, conn: int, words: Iterator[Word]) -> None:
        self._unsent[conn] = words
        self.room(conn)

    def _all_pins(self, *, answer: bool) -> Iterator[Word]:
        box = self._hub.retained.box
        yield from self._replica.pins(box)
        if answer:
            yield Sum(sum_of(box).pins, answer=True)

    def _put(self, conn: int, guid: str, word: Put) -> list[Word]:
        sender = word.session, word.name
        if sender not in self._clients:
            if len(self._clients) > self._hub.settings.interest:
                self._clients.clear()
            self._hub.runtime.clients += 1
            self._clients[sender] = self._hub.runtime.clients
        try:
            new = word.kept(self._clients[sender])
        except (struct.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise Stranger(f"invalid retained message on {word.topic!r}: {error}") from error
        box = self._hub.retained.box
        old = box.get(new.key)
        match self._replica.received_put(guid, new, old):
            case "keep":
                self._hub.retained.put_remote(new)
            case "mine" if old is not None:
                return [self._fit(conn, put(old))]
            case "mine" if (since := self._replica.mark(new.key)) is not None:
                owner, topic, fields = new.key
                return [Drop(owner, topic, fields, since)]
        return []

    def _withdraw(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._hub.retained.remove_remote(key)

    def _broadcast(self, word: Word) -> None:
        if self._links:
            packed = pack([word])
            for conn in self._links:
                fit = self._fit(conn, word)
                # Ordered, so that it keeps its position among the messages of this node's clients.
                self._hub.engine.node(conn, KEPT, 0, packed if fit is word else pack([fit]), ordered=True)

    def _fit(self, conn: int, word: Word) -> Word:
        """The message for a link. If it is too long for that node, only the removal of the previous one is sent."""
        if not isinstance(word, Put) or _FRAME + len(word.body) <= self._frames[conn]:
            return word
        kept = word.kept(0)
        time, session, number = version(kept)
        # The version just before this one, so that no node removes this one.
        return Drop(*kept.key, (time, session, number - 1))
