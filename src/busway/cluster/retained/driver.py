"""Kept messages between nodes: tells the others what is kept here, and keeps what they tell.

A driver over keepsakes.py, for the links of one hub.
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
"""Bytes that may wait for a link before it is told more of what was kept when it came."""


class RetainedDriver(NodeProtocolHandler, RetainedPeers):
    """What is kept by the nodes of a cluster, seen from one of them."""

    kinds = frozenset({KEPT})

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._keepsakes = RetainedReplica(hub.settings.grace)
        self._links: dict[int, str] = {}
        self._frames: dict[int, int] = {}
        """The longest message that the node of a link takes."""
        self._telling: dict[int, Iterator[Word]] = {}
        self._clients: dict[tuple[int, str], int] = {}

    # What happens here.

    def prepare(self) -> None:
        """The broker's pins are loaded: remember which ones were removed."""
        for key, since in self._hub.retained.marks.items():
            self._keepsakes.taken_back(key, since)

    def added(self, message: RetainedMessage) -> None:
        """A client of this node has posted or pinned something."""
        if message.flags & POST:
            self._keepsakes.own(message.key)
        self._tell_all(put(message))

    def removed_since(self, key: Key) -> Version | None:
        """Since when the pin with this key is taken back, at any node; None: it is not."""
        return self._keepsakes.mark(key)

    def at_another_node(self, key: Key) -> bool:
        """The client of this post is gone here; whether it is at another node, and its post with it."""
        if not self._keepsakes.disown(key):
            return False
        owner, topic, fields = key
        self._tell_all(Drop(owner, topic, fields, (0, 0, 0)))
        return True

    def removed(self, gone: Sequence[RetainedMessage], by: RetainedMessage | None = None) -> None:
        """Messages are retained no longer: `by` removed them, or their client has gone."""
        when = None if by is None else version(by)
        for one in gone:
            owner, topic, fields = one.key
            # The clock of who took it back may be behind that of who kept it.
            since = version(one) if when is None else max(when, version(one))
            if one.flags & PIN:
                self._keepsakes.taken_back(one.key, since)
            else:
                self._keepsakes.disown(one.key)
            self._tell_all(Drop(owner, topic, fields, since))

    # What links do.

    def opened(self, conn: int, node: Node) -> None:
        """A link: tell it everything, in portions."""
        self._links[conn], self._frames[conn] = node.guid, node.frame
        self._keepsakes.come(node.guid)
        self._tell(conn, self._keepsakes.mine(self._hub.retained.box))

    def room(self, conn: int) -> None:
        """Little waits for a link: it is told more."""
        words = self._telling.get(conn)
        while words is not None and self._hub.engine.pending(conn) < _AHEAD:
            size, some = 0, list[Word]()
            for told in islice(words, 4096):
                some.append(word := self._fit(conn, told))
                size += len(word.body) if isinstance(word, Put) else 100
                if size >= _PORTION:
                    break
            if not some:
                del self._telling[conn]
                return
            self._hub.engine.node(conn, KEPT, 0, pack(some))
        if words is not None:
            self._hub.engine.want_room(conn)

    def closed(self, conn: int, now: float) -> None:
        self._telling.pop(conn, None)
        self._frames.pop(conn, None)
        if (guid := self._links.pop(conn, None)) is not None:
            self._keepsakes.went(guid, now)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind, no numbers
        """A node tells what it keeps. Raises Stranger."""
        guid = self._links[conn]
        back: list[Word] = []
        for word in read(body):
            match word:
                case Put():
                    back += self._put(conn, guid, word)
                case Drop():
                    old = self._hub.retained.box.get(word.key)
                    if isinstance(word.owner, str) and self._keepsakes.new_mark(word, old):
                        self._hub.retained.mark_far(word.key, word.version)
                    if self._keepsakes.told_drop(guid, word, old):
                        self._hub.retained.take_far(word.key)
                case All():
                    self._withdraw(self._keepsakes.told_all(guid))
                case Sum() if conn not in self._telling and word.pins != sum_of(self._hub.retained.box).pins:
                    self._tell(conn, self._all_pins(answer=not word.answer))
        if back:
            self._hub.engine.node(conn, KEPT, 0, pack(back))

    def expire(self, now: float) -> None:
        if (due := self._keepsakes.deadline()) is not None and due <= now:
            self._withdraw(self._keepsakes.expire(now))
            self._tell_all(sum_of(self._hub.retained.box))

    def deadline(self) -> float | None:
        return self._keepsakes.deadline()

    # Inside.

    def _tell(self, conn: int, words: Iterator[Word]) -> None:
        self._telling[conn] = words
        self.room(conn)

    def _all_pins(self, *, answer: bool) -> Iterator[Word]:
        box = self._hub.retained.box
        yield from self._keepsakes.pins(box)
        if answer:
            yield Sum(sum_of(box).pins, answer=True)

    def _put(self, conn: int, guid: str, word: Put) -> list[Word]:
        sender = word.session, word.name
        if sender not in self._clients:
            if len(self._clients) > self._hub.settings.interest:
                self._clients.clear()
            self._hub.clients += 1
            self._clients[sender] = self._hub.clients
        try:
            new = word.kept(self._clients[sender])
        except (struct.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise Stranger(f"a kept message on {word.topic!r} that is none: {error}") from error
        box = self._hub.retained.box
        old = box.get(new.key)
        match self._keepsakes.told_put(guid, new, old):
            case "keep":
                self._hub.retained.put_far(new)
            case "mine" if old is not None:
                return [self._fit(conn, put(old))]
            case "mine" if (since := self._keepsakes.mark(new.key)) is not None:
                owner, topic, fields = new.key
                return [Drop(owner, topic, fields, since)]
        return []

    def _withdraw(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._hub.retained.take_far(key)

    def _tell_all(self, word: Word) -> None:
        if self._links:
            packed = pack([word])
            for conn in self._links:
                fit = self._fit(conn, word)
                # In its place among the messages that clients of this node publish.
                self._hub.engine.node(conn, KEPT, 0, packed if fit is word else pack([fit]), ordered=True)

    def _fit(self, conn: int, word: Word) -> Word:
        """As the node of a link takes it: of what is too long for it, it hears only that what was there before is gone."""
        if not isinstance(word, Put) or _FRAME + len(word.body) <= self._frames[conn]:
            return word
        kept = word.kept(0)
        time, session, number = version(kept)
        # Just before this one, so that no node takes this one back.
        return Drop(*kept.key, (time, session, number - 1))
