"""The mirror side of replication: follows one primary over a link, and writes the records that it sends.

The primary driver owns it and passes frames, links and time. The rules are in `replica`. Replicated records are not
delivered to clients here, except to those that read the replicas.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway._core import Log
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node
from busway.cluster.replication.compare import have
from busway.cluster.replication.copies import Copies, Copy, CopyBroker, found
from busway.cluster.replication.messages import Offer, Part, ToMirror, Trouble, Word, called, progress_of, stream_of
from busway.cluster.replication.problems import Problems
from busway.cluster.replication.replica import Replica, wanted
from busway.cluster.replication.scrub import Scrub

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

RETRY: Final = 5.0
"""Seconds until a stream that can't be copied is retried."""
UNSEEN: Final = 10.0
"""Seconds after which an unseen primary is reported: its name may be wrong."""


class _Rate:
    """Bytes in the last full second, and in total."""

    def __init__(self) -> None:
        self.bytes = 0
        self._second, self._now, self._last = 0, 0, 0

    def add(self, now: float, size: int) -> None:
        self._roll(now)
        self._now += size
        self.bytes += size

    def per_second(self, now: float) -> int:
        self._roll(now)
        return self._last

    def _roll(self, now: float) -> None:
        if (second := int(now)) != self._second:
            self._last = self._now if second == self._second + 1 else 0
            self._second, self._now = second, 0


class ReplicaDriver:
    """The replicas of one broker, and its link to the primary that it mirrors."""

    def __init__(
        self,
        runtime: "Runtime",
        broker: CopyBroker,
        target: str | None,
        folder: Path,
        send: Callable[[int, Word], None],
        *,
        missing: Callable[[str], object],
        known: Callable[[], Iterable[Node]],
        part: str = "",
    ) -> None:
        """`missing` is called if the node to mirror was not seen for a while; `known` returns the cluster's nodes.

        `part`: the streams of this node, which the node to mirror owns by a promotion; empty: its own streams.
        """
        self._part = part
        self._runtime = runtime
        self._broker = broker
        self._missing = missing
        self._known_nodes = known
        self._target = target
        self._folder = folder
        self._send = send
        self._stores: dict[str, Copies] = {}
        self._siblings: dict[str, ReplicaDriver] = {}
        """The drivers that follow parts, by the guid of the part."""
        self._replica: Replica | None = None
        self._store: Copies | None = None
        self._rates: dict[str, _Rate] = {}
        self._copy_started: dict[str, float] = {}
        """When the copy of a log began that has not caught up yet."""
        self._retry: float | None = None
        self._report_missing_at = None if target is None else runtime.loop.time() + UNSEEN
        """When to report that the primary was not seen."""
        self._stopped = False
        self.conn: int | None = None
        self.node: Node | None = None
        self.troubles = 0
        self._problems: Problems[str] = Problems()
        self._scrub = Scrub(runtime, self._holed)

    def prepare(self) -> None:
        """The broker can number streams: open the replicas that the data folder has."""
        for guid in found(self._folder):
            self._scrub.begin(self._open(guid).streams.values())

    @property
    def copies(self) -> dict[tuple[str, str], Stream]:
        """The replicas, by guid of the primary and name of the stream."""
        return {(guid, name): copy for guid, store in self._stores.items() for name, copy in store.streams.items()}

    def every(self) -> list[Copy]:
        """All replicas."""
        return [copy for store in self._stores.values() for copy in store.streams.values()]

    def missing(self, copies: Iterable[Copy]) -> list[str]:
        """What these replicas of the primary may lack, as far as this mirror knows. It knows nothing before a link."""
        texts = []
        for copy in copies:
            logs = list(copy.logs())
            offered = self._is_current(copy) and all(self._is_offered(name) for name, _ in logs)
            if not offered:
                texts.append(f"stream {copy.name!r}: this mirror was not linked to its node since its start")
            for name, opened in logs:
                if holes := have(opened).holes:
                    texts.append(f"{called(name)}: {sum(end - begin for begin, end in holes)} records are damaged")
                if offered and (behind := self.behind(name)):
                    texts.append(f"{called(name)}: {behind} records are missing")
        failed = {} if self._replica is None else self._replica.failed
        return texts + [f"{called(name)} can't be copied: {why}" for name, why in failed.items()]

    def _is_offered(self, name: str) -> bool:
        """Whether the end of a log at its primary is known."""
        return self._replica is not None and name in self._replica.ahead

    def has(self, guid: str) -> bool:
        """Whether there is a folder for replicas of a node."""
        return guid in self._stores

    def store(self, guid: str) -> Copies:
        """The replicas of one primary, which may be none."""
        return self._open(guid)

    def for_part(self, part: str, owner: str, send: Callable[[int, Word], None]) -> "ReplicaDriver":
        """The driver that follows streams which another node owns by a promotion. It shares the replicas."""
        more: dict[str, Any] = {"missing": self._missing, "known": self._known_nodes, "part": part}
        driver = ReplicaDriver(self._runtime, self._broker, owner, self._folder, send, **more)
        driver._stores = self._stores
        self._siblings[part] = driver
        return driver

    def of(self, guid: str) -> list[Copy]:
        """The replicas of one primary."""
        store = self._stores.get(guid)
        return [] if store is None else list(store.streams.values())

    def _open(self, guid: str) -> Copies:
        if (store := self._stores.get(guid)) is None:
            store = self._stores[guid] = Copies(self._runtime, self._broker, self._folder, guid, self._rung)
            store.open()
        return store

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        if self._target is None or not wanted(self._target, node.guid, node.name, node.addresses):
            return
        if self.conn is not None:
            text = "%s matches the node to mirror, but %s is mirrored already: give each its own name"
            log.warning(text, node, self.node)
            return
        self.conn, self.node, self._report_missing_at = conn, node, None
        self._store = self._open(self._part or node.guid)
        self._replica = Replica(self._store)
        log.info("this node is a mirror of %s", node)
        self._send(conn, self._replica.ask())

    def closed(self, conn: int) -> None:
        if conn == self.conn:
            log.warning("the link to %s has ended, which this node mirrors", self.node)
            self.conn = self._retry = None
            self._copy_started.clear()
            self._problems.forget(lambda _: True)

    def heard(self, conn: int, word: ToMirror) -> None:
        if conn != self.conn or self._replica is None or self._stopped:
            return
        name: str | None = None
        if isinstance(word, Offer):
            self._offered(word)
        elif isinstance(word, Part) and (name := self._replica.name(word.number)):
            self._rates.setdefault(stream_of(name), _Rate()).add(self._runtime.loop.time(), len(word.block))
        self._answer(self._replica.heard(word))
        if name and self._store is not None and (found := self._store.find(name)) is not None:
            if found.fileno() is None:  # no thread writes it, so it is written already
                self._settle(name, found)
            else:
                self._report_written(name)

    def _offered(self, offer: Offer) -> None:
        have, what = offer.have, called(offer.log)
        self._copy_started[offer.log] = self._runtime.loop.time()
        if offer.how == "anew":
            log.info("copying %s of %s from the start: offsets %d to %d", what, self.node, have.first, have.next)
        elif offer.how == "check":
            log.warning("%s has lost the end of %s, which this mirror may have", self.node, what)

    def _answer(self, word: Word | None) -> None:
        if word is None or self.conn is None:
            return
        if isinstance(word, Trouble):
            self.troubles += 1
            failed = {} if self._replica is None else self._replica.failed
            # The number in the message is not valid any more, so find the logs by the reason.
            logs = [name for name, why in failed.items() if why.startswith(word.text)]
            if new := [name for name in logs if self._problems.is_new(name, word.text)]:
                names = " and ".join(map(called, new))
                log.warning("can't copy %s of %s: %s; retry every %g s", names, self.node, word.text, RETRY)
            if self._retry is None:
                self._retry = self._runtime.loop.time() + RETRY
                self._runtime.arm()
        self._send(self.conn, word)

    def _is_current(self, copy: Copy) -> bool:
        return self._store is not None and self._store.streams.get(copy.name) is copy

    def _holed(self, copy: Copy, name: str) -> None:
        """The scrub found holes in the replica of a log: ask the primary for it again."""
        if self.conn is None or self._replica is None or not self._is_current(copy):
            return  # the primary learns of the holes when it is linked
        log.warning("the replica of %s of %s has holes: asking its node for missing records", called(name), self.node)
        self._send(self.conn, self._replica.ask_for(name))
        self._runtime.flush()

    def _rung(self, copy: Copy, name: str) -> None:
        """The replica of a log has written more records, or failed to."""
        self._siblings.get(copy.copied, self).settle(copy, name)

    def settle(self, copy: Copy, name: str) -> None:
        """Report the end of a replica, or a failure, to its primary."""
        if self._is_current(copy) and (found := dict(copy.logs()).get(name)) is not None:
            self._settle(name, found)
            self._runtime.flush()

    def _settle(self, name: str, found: Log) -> None:
        lost = found.remove_unwritten()
        if lost is not None and self._replica is not None:
            self._answer(self._replica.fail_log(name, lost[2]))
        self._report_written(name)

    def _report_written(self, name: str) -> None:
        if self._replica is None:
            return
        if (got := self._replica.written(name)) is not None:
            self._answer(got)
        if self.behind(name) == 0 and name not in self._replica.failed and self._problems.over(name):
            log.info("%s of %s can be copied again", called(name), self.node)
        if name in self._copy_started and self.behind(name) == 0:
            seconds = self._runtime.loop.time() - self._copy_started.pop(name)
            log.info("%s of %s: copied completely in %.1f s", called(name), self.node, seconds)

    # Time.

    def deadline(self) -> float | None:
        return min((due for due in (self._retry, self._report_missing_at) if due is not None), default=None)

    def expire(self, now: float) -> None:
        if self._report_missing_at is not None and now >= self._report_missing_at and self._target is not None:
            self._report_missing_at = None
            if self._unlinked_primary() is None:
                log.warning(
                    "no node with the name, guid or address %r was seen yet, which this node is to mirror",
                    self._target,
                )
                self._missing(self._target)
        if self._retry is not None and now >= self._retry:
            self._retry = None
            if self._replica is not None and (ask := self._replica.ask_again()) is not None and self.conn is not None:
                self._send(self.conn, ask)

    def kill(self) -> None:
        self._scrub.kill()
        for store in self._stores.values():
            store.kill()

    async def stop(self) -> None:
        self._stopped = True
        self._replica = None
        await self._scrub.stop()
        for store in self._stores.values():
            store.close()

    # Figures.

    @property
    def target(self) -> str | None:
        """The node to mirror, as configured."""
        return self._target

    def _unlinked_primary(self) -> tuple[str, str, Copies] | None:
        """Guid, name and replicas of a primary that was not linked since the start. Other nodes may know its name."""
        known = {node.guid: node for node in self._known_nodes()}
        for guid, store in self._stores.items() if self._target is not None else ():
            node = known.get(guid)
            if store.streams and (node is None or wanted(self._target or "", guid, node.name, node.addresses)):
                return guid, "" if node is None else node.name, store
        return None

    def behind(self, name: str) -> int:
        """Records of a log that its primary has and this mirror lacks, as far as known."""
        log = None if self._store is None else self._store.find(name)
        ahead = 0 if self._replica is None else self._replica.ahead.get(name, 0)
        return 0 if log is None else max(ahead - log.written, 0)

    def figures(self) -> dict[str, Any] | None:
        """The figures of the primary and its replicas; None: it was never linked and has no replica here."""
        if self._stopped:
            return None
        if self.node is None or self._store is None:
            if (unlinked := self._unlinked_primary()) is None:
                return None
            guid, name, store = unlinked
        else:
            guid, name, store = self.node.guid, self.node.name, self._store
        now, linked = self._runtime.loop.time(), self.conn is not None
        streams = {
            stream: {
                "first": copy.first,
                "next": copy.safe,
                "behind": self.behind(stream) if linked else None,
                "copied_bytes": self._rates[stream].bytes if stream in self._rates else 0,
                "bytes_per_second": self._rates[stream].per_second(now) if stream in self._rates else 0,
                "trouble": self._problems.get(stream) or self._problems.get(progress_of(stream)),
            }
            for stream, copy in store.streams.items()
        }
        return {
            "name": name,
            "guid": guid,
            "linked": linked,
            "behind": sum(self.behind(stream) for stream in streams) if linked else None,
            "troubles": self.troubles,
            "streams": streams,
        }
