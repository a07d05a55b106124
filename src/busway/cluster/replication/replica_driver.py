"""The side of a mirror: follows one node over a link, and writes what it sends.

A driver over mirror.py. Nothing that is copied goes to anybody here but those who read the copies.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway.broker.channels.state.progress import Entry
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node
from busway.cluster.replication.channel_progress import split
from busway.cluster.replication.copies import Copies, Copy, found
from busway.cluster.replication.messages import Heard, Noted, Offer, Part, Recall, Recalled, ToMirror, Trouble, Word
from busway.cluster.replication.problems import Problems
from busway.cluster.replication.replica import Replica, wanted
from busway.cluster.replication.scrub import Scrub

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

RETRY: Final = 5.0
"""Seconds until what could not be copied is tried again."""
UNSEEN: Final = 10.0
"""Seconds after which it is told that nobody was seen who is to be mirrored: its name may be wrong."""


class _Rate:
    """Bytes in the last second that is over, and in all."""

    def __init__(self) -> None:
        self.bytes = 0
        self._second, self._now, self._last = 0, 0, 0

    def add(self, now: float, size: int) -> None:
        self._turn(now)
        self._now += size
        self.bytes += size

    def per_second(self, now: float) -> int:
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        if (second := int(now)) != self._second:
            self._last = self._now if second == self._second + 1 else 0
            self._second, self._now = second, 0


class ReplicaDriver:
    """The copies of one broker, and the link over which one node is followed."""

    def __init__(
        self,
        hub: "Hub",
        target: str | None,
        folder: Path,
        send: Callable[[int, Word], None],
        *,
        missing: Callable[[str], object],
        known: Callable[[], Iterable[Node]],
    ) -> None:
        """`missing` is called once if the node to mirror was not seen for a while; `known` are the nodes of the cluster."""
        self._hub = hub
        self._missing = missing
        self._known_nodes = known
        self._target = target
        self._folder = folder
        self._send = send
        self._shelves: dict[str, Copies] = {}
        self._mirror: Replica | None = None
        self._shelf: Copies | None = None
        self._rates: dict[str, _Rate] = {}
        self._begun: dict[str, float] = {}
        """Since when streams are copied that are not as far as their node's."""
        self._retry: float | None = None
        self._unseen = None if target is None else hub.loop.time() + UNSEEN
        """When it is told that there is nobody to be mirrored."""
        self._stopped = False
        self.conn: int | None = None
        self.node: Node | None = None
        self.troubles = 0
        self._wrong: Problems[str] = Problems()
        self._auditing = Scrub(hub, self._holed)

    def prepare(self) -> None:
        """The broker can number streams: open the replicas that the data folder has."""
        for guid in found(self._folder):
            self._auditing.begin(self._open(guid).streams.values())

    @property
    def copies(self) -> dict[tuple[str, str], Stream]:
        """By the guid of the node and the name of the stream."""
        return {(guid, name): one for guid, shelf in self._shelves.items() for name, one in shelf.streams.items()}

    def of(self, guid: str) -> list[Copy]:
        """Those of one node."""
        shelf = self._shelves.get(guid)
        return [] if shelf is None else list(shelf.streams.values())

    def _open(self, guid: str) -> Copies:
        if (shelf := self._shelves.get(guid)) is None:
            shelf = self._shelves[guid] = Copies(self._hub, self._folder, guid, self._rung)
            shelf.open()
        return shelf

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        if self._target is None or not wanted(self._target, node.guid, node.name, node.addresses):
            return
        if self.conn is not None:
            log.warning("%s is to be mirrored, and so is %s; only the first one is", self.node, node)
            return
        self.conn, self.node, self._unseen = conn, node, None
        self._shelf = self._open(node.guid)
        self._mirror = Replica(self._shelf)
        log.info("this is a mirror of %s", node)
        self._send(conn, self._mirror.ask())

    def closed(self, conn: int) -> None:
        if conn == self.conn:
            log.warning("the link to %s is gone, of which this is a mirror", self.node)
            self.conn = self._retry = None
            self._begun.clear()
            self._wrong.forget(lambda _: True)

    def heard(self, conn: int, word: ToMirror) -> None:
        if conn != self.conn or self._mirror is None or self._stopped:
            return
        name: str | None = None
        if isinstance(word, Offer):
            self._offered(word)
        elif isinstance(word, Part) and (name := self._mirror.name(word.number)):
            self._rates.setdefault(name, _Rate()).add(self._hub.loop.time(), len(word.block))
        self._answer(self._mirror.heard(word))
        if isinstance(word, Noted) and word.serial:
            self._note(conn, word)
        elif isinstance(word, Recall) and (copy := self._copy(word.number)) is not None:
            log.warning("stream %r of %s has lost what its channels did, which is told from here", copy.name, self.node)
            copy.journal.look(partial(self._recalled, conn, word.number))
        if name and self._shelf is not None and (copy := self._shelf.streams.get(name)) is not None:
            if copy.log.fileno() is None:  # no thread writes it, so it is written
                self._settle(copy)
            else:
                self._told(name)

    def _note(self, conn: int, word: Noted) -> None:
        """Say when it is written; a copy that can't be written knows nothing for sure any more, and so has not to be waited for."""
        if (copy := self._copy(word.number)) is None or copy.noting is None:
            return

        def written(told: "asyncio.Future[None]") -> None:
            if told.cancelled() or told.exception() is not None:
                copy.fresh = False
            if self.conn == conn:
                self._send(conn, Heard(word.number, word.serial))
                self._hub.flush()

        if copy.noting.done():
            written(copy.noting)
        else:
            copy.noting.add_done_callback(written)

    def _copy(self, number: int) -> Copy | None:
        name = None if self._mirror is None else self._mirror.name(number)
        return None if name is None or self._shelf is None else self._shelf.streams.get(name)

    def _recalled(self, conn: int, number: int, entries: list[Entry]) -> None:
        """What is known here of the channels of a stream; of all that was done, also while this one stood in."""
        if conn == self.conn:
            parts = list(split(entries))
            for at, part in enumerate(parts):
                self._send(conn, Recalled(number, part, more=at < len(parts) - 1))
            self._hub.loop.call_soon(self._hub.flush)

    def _offered(self, offer: Offer) -> None:
        name, have = offer.config.name, offer.have
        self._begun[name] = self._hub.loop.time()
        if offer.how == "anew":
            log.info("stream %r of %s is copied whole: offsets %d to %d", name, self.node, have.first, have.next)
        elif offer.how == "check":
            log.warning("stream %r of %s has lost its end, which may be here", name, self.node)

    def _answer(self, word: Word | None) -> None:
        if word is None or self.conn is None:
            return
        if isinstance(word, Trouble):
            self.troubles += 1
            failed = {} if self._mirror is None else self._mirror.failed
            # The word has the number that the node gave the stream, which counts no more.
            those = [name for name, why in failed.items() if why.startswith(word.text)]
            if new := [name for name in those if self._wrong.is_new(name, word.text)]:
                log.warning(
                    "stream %s of %s can't be copied: %s; tried again every %g s",
                    " and ".join(map(repr, new)),
                    self.node,
                    word.text,
                    RETRY,
                )
            if self._retry is None:
                self._retry = self._hub.loop.time() + RETRY
                self._hub.clock.arm()
        self._send(self.conn, word)

    def _holed(self, copy: Copy) -> None:
        """A copy was found to miss something that its node may have: then it is made anew."""
        name = copy.config.name
        if (
            self.conn is None
            or self._mirror is None
            or self._shelf is None
            or self._shelf.streams.get(name) is not copy
        ):
            return  # its node hears of it when it comes
        log.warning("the copy of stream %r of %s has holes: its node is asked for what is missing", name, self.node)
        self._send(self.conn, self._mirror.ask_for(name))
        self._hub.flush()

    def _rung(self, copy: Copy) -> None:
        """More of a copy is written, or can't be."""
        if self._shelf is not None and self._shelf.streams.get(copy.config.name) is copy:
            self._settle(copy)
            self._hub.flush()

    def _settle(self, copy: Copy) -> None:
        lost = copy.log.settle()
        if lost is not None and self._mirror is not None:
            self._answer(self._mirror.fail_stream(copy.config.name, lost[2]))
        self._told(copy.config.name)

    def _told(self, name: str) -> None:
        if self._mirror is None:
            return
        if (got := self._mirror.written(name)) is not None:
            self._answer(got)
        if self.behind(name) == 0 and name not in self._mirror.failed and self._wrong.over(name):
            log.info("stream %r of %s can be copied again", name, self.node)
        if name in self._begun and self.behind(name) == 0:
            seconds = self._hub.loop.time() - self._begun.pop(name)
            size = self._rates[name].bytes if name in self._rates else 0
            log.info("stream %r of %s is here, as far as it goes: %d bytes in %.1f s", name, self.node, size, seconds)

    # Time.

    def deadline(self) -> float | None:
        return min((due for due in (self._retry, self._unseen) if due is not None), default=None)

    def expire(self, now: float) -> None:
        if self._unseen is not None and now >= self._unseen and self._target is not None:
            self._unseen = None
            if self._away() is None:
                log.warning(
                    "this is to be a mirror of %r, and no node with that name, guid or address was seen yet",
                    self._target,
                )
                self._missing(self._target)
        if self._retry is not None and now >= self._retry:
            self._retry = None
            if self._mirror is not None and (ask := self._mirror.ask_again()) is not None and self.conn is not None:
                self._send(self.conn, ask)

    def kill(self) -> None:
        self._auditing.kill()
        for shelf in self._shelves.values():
            shelf.kill()

    async def stop(self) -> None:
        self._stopped = True
        self._mirror = None
        await self._auditing.stop()
        for shelf in self._shelves.values():
            await shelf.close()

    # What it is.

    @property
    def target(self) -> str | None:
        """The node that is to be followed, as it was given."""
        return self._target

    def _away(self) -> tuple[str, str, Copies] | None:
        """Guid, name and copies of the node that is to be followed, if it was not here since the start. A copy does not tell its node's name, others may."""
        known = {node.guid: node for node in self._known_nodes()}
        for guid, shelf in self._shelves.items() if self._target is not None else ():
            node = known.get(guid)
            if shelf.streams and (node is None or wanted(self._target or "", guid, node.name, node.addresses)):
                return guid, "" if node is None else node.name, shelf
        return None

    def behind(self, name: str) -> int:
        """Records of a stream that are not here yet, as far as that is known."""
        log = None if self._shelf is None else self._shelf.find(name)
        ahead = 0 if self._mirror is None else self._mirror.ahead.get(name, 0)
        return 0 if log is None else max(ahead - log.written, 0)

    def figures(self) -> dict[str, Any] | None:
        """Of the node that is followed; None: none was yet, and there is no copy of it."""
        if self._stopped:
            return None
        if self.node is None or self._shelf is None:
            if (away := self._away()) is None:
                return None
            guid, name, shelf = away
        else:
            guid, name, shelf = self.node.guid, self.node.name, self._shelf
        now, linked = self._hub.loop.time(), self.conn is not None
        streams = {
            stream: {
                "first": copy.first,
                "next": copy.safe,
                "behind": self.behind(stream) if linked else None,
                "copied_bytes": self._rates[stream].bytes if stream in self._rates else 0,
                "bytes_per_second": self._rates[stream].per_second(now) if stream in self._rates else 0,
                "channels": len(copy.channels),
                "trouble": self._wrong.get(stream),
            }
            for stream, copy in shelf.streams.items()
        }
        return {
            "name": name,
            "guid": guid,
            "linked": linked,
            "behind": sum(self.behind(stream) for stream in streams) if linked else None,
            "troubles": self.troubles,
            "streams": streams,
        }
