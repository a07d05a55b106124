"""A node that has lost what its channels noted, with its disk or by a power cut, gets it back from its mirror before it hands out of them.

A driver, and a part of `mirroring`. Whether it is lost is told by the journal (see `lineage`), and never by what is in it: a channel that somebody
has removed is none that was lost.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from busway.broker.channels.journal import Journal
from busway.broker.channels.state.progress import Entry, Stamp, rebuild
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node
from busway.cluster.replication.messages import Recall, Recalled, Word
from busway.cluster.replication.primary import Primary, Sending

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")


class ChannelRecovery:
    """What comes back of the channels of one broker."""

    def __init__(self, hub: "Hub", send: Callable[[int, Word], None]) -> None:
        self._hub = hub
        self._send = send
        self._known: dict[int, Stamp] = {}
        """How far a mirror knows it, by the number of what is sent to that,"""
        self._parts: dict[int, list[Entry]] = {}
        """and what has come of it so far."""
        self.removed: Callable[[str, str], int] = lambda _stream, _channel: 0
        """When a channel was removed in the cluster, in microseconds."""

    def begin(self, stream: Stream, sending: Sending, known: Stamp | None) -> None:
        """A mirror that has heard so much of the channels is sent their stream."""
        journal = self._hub.channels.notes(stream)
        if known is not None and isinstance(journal, Journal) and journal.lineage is not None:
            sending.recall = journal.lineage.lacks(known)
            self._known[sending.number] = known

    def waits(self, sending: Sending) -> bool:
        """Whether something is to come back still."""
        return bool(sending.recall) and sending.state != "stopped"

    def ask(self, conn: int, sending: Sending) -> None:
        """When the records are here, which may be back only now."""
        if sending.recall and not sending.recalling and sending.open:
            sending.recalling = True
            self._send(conn, Recall(sending.number))

    def heard(self, stream: Stream, sending: Sending, node: Node, word: Recalled) -> bool:
        """Whether all is here, and counts."""
        entries = self._parts.setdefault(word.number, [])
        entries += word.entries
        if word.more:
            return False
        del self._parts[word.number]
        journal, why = self._hub.channels.notes(stream), sending.recall
        if not sending.recalling or not isinstance(journal, Journal):
            return False
        states = {
            name: state for name, state in rebuild(entries).items() if self.removed(stream.name, name) <= state.epoch
        }
        standing = self._hub.channels.ownership
        standing.hold(stream, yes=True)  # it may have gone on without, if this took too long
        count = standing.recall(stream, states, lost=why == "lost")
        journal.mended(self._known[word.number])
        sending.recall, sending.recalling = "", False
        stream.lost.clear()
        what = "lost" if why == "lost" else "behind what its mirror knows"
        log.warning(
            "stream %r: what its channels had done was %s: %d of them are where %s knows them to be",
            stream.name,
            what,
            count,
            node,
        )
        return True

    def keep(self, origins: "list[Primary]") -> None:
        """What is not sent any more says nothing more."""
        for number in [one for one in self._known if not any(origin.find(one) for origin in origins)]:
            del self._known[number]
            self._parts.pop(number, None)


def tell_back(sending: Sending, stream: Stream | None, node: Node) -> None:
    """Tell people of what has come back of the messages of a stream, or has not."""
    name = sending.config.name
    if count := sending.mending.count:
        log.warning("stream %r: %d messages that were lost are back from its mirror", name, count)
    if left := sending.mending.left:
        log.error("stream %r: %d messages are lost, which its mirror does not have either", name, left)
    if count := sending.returned:
        begin = sending.offered
        log.warning(
            "stream %r: its end was lost: %d messages from offset %d on are back from %s", name, count, begin, node
        )
        sending.returned = 0
        if stream is not None:
            stream.lost.clear()
