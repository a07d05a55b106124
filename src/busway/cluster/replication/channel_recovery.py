"""Recovery of channel progress: a node that lost it, with its disk or by a power cut, restores it from its mirror.

The primary driver calls it before the channels deliver. The identity and length of the journal show a loss, never its
content: a removed channel must not be mistaken for a lost one.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import Entry, Stamp, rebuild
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node
from busway.cluster.replication.messages import Recall, Recalled, Word
from busway.cluster.replication.primary import Primary, Sending

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels

log = logging.getLogger("busway.cluster")


class ChannelRecovery:
    """Recovery of the channels of one broker."""

    def __init__(
        self,
        channels: "Callable[[], Channels]",
        send: Callable[[int, Word], None],
        removed: Callable[[str, str], int],
    ) -> None:
        """`removed` returns when a channel of a stream was removed, or 0."""
        self._channels = channels
        self._removed = removed
        self._send = send
        self._known: dict[int, Stamp] = {}
        """The journal position that a mirror has, by number of the transfer."""
        self._parts: dict[int, list[Entry]] = {}
        """The entries received so far, by number of the transfer."""

    def begin(self, stream: Stream, sending: Sending, known: Stamp | None) -> None:
        """A transfer to a mirror begins. `known`: the position in the channel journal that the mirror has."""
        journal = self._channels().journal_of(stream)
        if known is not None and isinstance(journal, ProgressLog) and journal.lineage is not None:
            sending.recall = journal.lineage.lacks(known)
            self._known[sending.number] = known

    def waits(self, sending: Sending) -> bool:
        """Whether channel progress is still to be restored."""
        return bool(sending.recall) and sending.state != "stopped"

    def ask(self, conn: int, sending: Sending) -> None:
        """Ask for the channel progress, once the records of the stream are restored."""
        if sending.recall and not sending.recall_sent and sending.open:
            sending.recall_sent = True
            self._send(conn, Recall(sending.number))

    def heard(self, stream: Stream, sending: Sending, node: Node, word: Recalled) -> bool:
        """Handle entries of the mirror. Returns whether all are here and applied."""
        entries = self._parts.setdefault(word.number, [])
        entries += word.entries
        if word.more:
            return False
        del self._parts[word.number]
        journal, loss = self._channels().journal_of(stream), sending.recall
        if not sending.recall_sent or not isinstance(journal, ProgressLog):
            return False
        states = {
            name: state for name, state in rebuild(entries).items() if self._removed(stream.name, name) <= state.epoch
        }
        ownership = self._channels().ownership
        ownership.hold(stream, yes=True)  # delivery may have resumed without it after a timeout
        count = ownership.recall(stream, states, lost=loss == "lost")
        journal.mended(self._known[word.number])
        sending.recall, sending.recall_sent = "", False
        stream.lost.clear()
        state = "lost" if loss == "lost" else "older than its mirror's"
        text = "stream %r: channel progress was %s: restored %d channels from %s"
        log.warning(text, stream.name, state, count, node)
        return True

    def keep(self, primaries: "list[Primary]") -> None:
        """Forget transfers that have ended."""
        for number in [known for known in self._known if not any(primary.find(known) for primary in primaries)]:
            del self._known[number]
            self._parts.pop(number, None)


def log_restored(sending: Sending, stream: Stream | None, node: Node) -> None:
    """Log which lost messages of a stream were restored, and which were not."""
    name = sending.config.name
    if count := sending.repair.count:
        log.warning("stream %r: restored %d lost messages from its mirror", name, count)
    if left := sending.repair.left:
        log.error("stream %r: %d messages are lost; its mirror does not have them either", name, left)
    if count := sending.restored_count:
        text = "stream %r: its end was lost: restored %d messages from offset %d on from %s"
        log.warning(text, name, count, sending.offered, node)
        sending.restored_count = 0
        if stream is not None:
            stream.lost.clear()
