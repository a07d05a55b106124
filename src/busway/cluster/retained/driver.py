"""Replicates retained messages between nodes: sends this node's to the others, and stores theirs.

The broker's retained messages call it for local changes. The rules are in `replica`.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.flags import PIN
from busway.broker.peers import RetainedPeers
from busway.broker.retained.store import Key, RetainedMessage, Version
from busway.cluster.links.calls import Calls
from busway.cluster.links.portions import Portions
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import NodeProtocolHandler
from busway.cluster.retained.replica import WORDS, All, Drop, Put, RetainedReplica, Sum, Word, put, word_of

if TYPE_CHECKING:
    from busway.broker.retained.driver import RetainedDriver as LocalRetained
    from busway.broker.runtime import Runtime

_FRAME: Final = 16
"""Bytes of a PUBLISH before its body."""


class RetainedDriver(NodeProtocolHandler, RetainedPeers):
    """The retained messages of a cluster, at one of its nodes."""

    def __init__(self, runtime: "Runtime", local: "Callable[[], LocalRetained]", calls: Calls) -> None:
        """`local` returns the retained messages of this broker."""
        self._runtime = runtime
        self._local = local
        self._calls = calls
        self._replica = RetainedReplica(runtime.settings.grace, self._forget)
        self._guids: dict[int, str] = {}
        self._lists = Portions(runtime, lambda conn, words: calls.tell(conn, WORDS, words))
        self._clients: dict[tuple[int, str], int] = {}
        calls.on(WORDS, self._received)

    # Changes at this node.

    def prepare(self) -> None:
        """The broker's pins are loaded, and those that were removed."""
        retained = self._local()
        for key, since in retained.marks.items():
            self._replica.pins.put(Drop(*key, since))
        for message in retained.box:
            self._replica.pins.put(message)

    def _forget(self, key: Key) -> None:
        self._local().forget_removed(key)

    def added(self, message: RetainedMessage) -> None:
        """A client of this node has posted or pinned something."""
        self._replica.added(message)
        self._broadcast(put(message))

    def removed_since(self, key: Key) -> Version | None:
        """The version at which a pin was removed at any node; None: it was not."""
        return self._replica.removed_since(key)

    def at_another_node(self, key: Key) -> bool:
        """A client of this node is gone. Returns whether another node has the client and its post."""
        if not self._replica.disown(key):
            return False
        self._broadcast(Drop(*key, (0, 0, 0)))
        return True

    def removed(self, gone: Sequence[RetainedMessage], by: RetainedMessage | None = None) -> None:
        """Messages are not retained any more: `by` removed them, or their client is gone."""
        for message in gone:
            # The clock of the remover may be behind that of the sender.
            since = message.version if by is None else max(by.version, message.version)
            self._broadcast(self._replica.removed(message, since))

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        """A link is open: send the full list."""
        self._guids[conn] = node.guid
        self._replica.link_opened(node.guid)
        self._send(conn, self._replica.mine(self._local().box))

    def room(self, conn: int) -> None:
        self._lists.room(conn)

    def closed(self, conn: int, now: float) -> None:
        self._lists.closed(conn)
        if (guid := self._guids.pop(conn, None)) is not None:
            self._replica.link_closed(guid, now)

    def _received(self, conn: int, _: int, words: list[Word]) -> None:
        """Handle changes of another node. Raises Stranger."""
        guid, retained = self._guids[conn], self._local()
        for word in words:
            match word:
                case Put():
                    self._put(conn, guid, word)
                case Drop(owner=str()):
                    if self._replica.pins.put(word):
                        retained.mark_removed(word.key, word.version)
                        retained.remove_remote(word.key)
                case Drop():
                    if self._replica.lost(guid, word.key):
                        retained.remove_remote(word.key)
                case All():
                    self._withdraw(self._replica.received_all(guid))
                case Sum() if conn not in self._lists and word.pins != self._replica.pins.digest:
                    self._send(conn, self._all_pins(answer=not word.answer))

    def expire(self, now: float) -> None:
        if (due := self._replica.deadline()) is not None and due <= now:
            self._withdraw(self._replica.expire(now))
            self._broadcast(Sum(self._replica.pins.digest))

    def deadline(self) -> float | None:
        return self._replica.deadline()

    # Inside.

    def _send(self, conn: int, words: Iterator[Word]) -> None:
        self._lists.begin(conn, (self._fit(conn, word) for word in words))

    def _all_pins(self, *, answer: bool) -> Iterator[Word]:
        yield from self._replica.all_pins()
        if answer:
            yield Sum(self._replica.pins.digest, answer=True)

    def _put(self, conn: int, guid: str, word: Put) -> None:
        sender = word.session, word.name
        if sender not in self._clients:
            if len(self._clients) > self._runtime.settings.interest:
                self._clients.clear()
            self._runtime.clients += 1
            self._clients[sender] = self._runtime.clients
        try:
            new = word.kept(self._clients[sender])
        except (struct.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise Stranger(f"invalid retained message on {word.topic!r}: {error}") from error
        if new.flags & PIN:
            if self._replica.pins.put(new):
                self._local().put_remote(new)
            elif (later := self._replica.pins.later(new)) is not None:
                self._calls.tell(conn, WORDS, [self._fit(conn, word_of(later))])
            return
        old = self._local().box.get(new.key)
        if self._replica.received_post(guid, new.key) and (old is None or old.version < new.version):
            self._local().put_remote(new)

    def _withdraw(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._local().remove_remote(key)

    def _broadcast(self, word: Word) -> None:
        for conn in self._calls.nodes:
            # Ordered, so that it keeps its position among the messages of this node's clients.
            self._calls.tell(conn, WORDS, [self._fit(conn, word)], ordered=True)

    def _fit(self, conn: int, word: Word) -> Word:
        """The message for a link. If it is too long for that node, only the removal of the previous one is sent."""
        if not isinstance(word, Put) or _FRAME + len(word.body) <= self._calls.nodes[conn].frame:
            return word
        kept = word.kept(0)
        time, session, number = kept.version
        # The version just before this one, so that no node removes this one.
        return Drop(*kept.key, (time, session, number - 1))
