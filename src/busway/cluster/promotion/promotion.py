"""Promotion: an operator or a program makes a mirror the owner of a failed node's streams and channels.

Each node tells the others which promotions it knows. A node whose mirrors may have been promoted while it was down
delivers from its channels only after all of them have reported. A node that learns of a higher epoch for its streams
restarts: `returned` sets aside the records that only it has, and `parts` copies the streams from the new owner.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway.broker.streams import set_aside
from busway.broker.streams.stream import Stream, settings
from busway.broker.streams.table import StreamTable
from busway.cluster.links.calls import Calls
from busway.cluster.node import Node
from busway.cluster.promotion.messages import ASK, REPORT, Claim, Claimed, Report
from busway.cluster.promotion.owners import Owner, Owners
from busway.cluster.promotion.owners_file import Content, OwnersFile
from busway.cluster.promotion.parts import Parts
from busway.cluster.protocol import SELF, NodeProtocolHandler
from busway.cluster.replication.compare import have
from busway.cluster.replication.copies import Copy
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.common import environment
from busway.errors import BusError, Disconnected, Rejected

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

_PATIENCE: Final = 5.0
"""Seconds to wait for the answer of a node."""
_TRIM: Final = 60.0
"""Seconds between two removals of old messages from owned streams."""
_SHORTEST: Final = 4
"""The fewest digits of a guid that identify a node."""


class Promotion(NodeProtocolHandler):
    """The promotions at one node."""

    def __init__(
        self,
        runtime: "Runtime",
        streams: StreamTable,
        channels: "Callable[[], Channels]",
        calls: Calls,
        file: OwnersFile,
        content: Content,
        owners: Owners,
        known: KnownMirrors,
        parts: Parts,
        *,
        changed: Callable[[str], object],
        notice: Callable[[str, str, str], object],
        name_of: Callable[[str], str],
        restart: Callable[[], object],
    ) -> None:
        """`changed` hears of each node whose streams have another owner, or whose owner came or went.

        `notice` gets an event, the guid of its node and a text. `restart` starts this broker again.
        """
        self._runtime = runtime
        self._streams = streams
        self._channels = channels
        self._calls = calls
        self._file = file
        self._held = set(content.held)
        """The nodes whose streams this one owns by a promotion."""
        self.owners = owners
        self._known = known
        self.parts = parts
        self._changed = changed
        self._notice = notice
        self._name_of = name_of
        self._restart = restart
        self._awaited = {guid for guid in known.heirs if owners.get(guid).owner == guid}
        """Mirrors that have to report before this node delivers from its channels."""
        self._open: set[str] = set()
        """The nodes from whose channels this one delivers."""
        self._promoting: set[str] = set()
        self._mirrors: dict[str, tuple[str, ...]] = {}
        """The mirrors of each node, as it reported them."""
        self._stepping_down = False
        self._trimmed = runtime.loop.time()
        self.promotions = 0
        self.aside = sum(aside["count"] for aside in set_aside.listed(runtime.folder))
        """Records that are set aside since an earlier start."""
        calls.on(REPORT, self._reported)
        calls.serve(ASK, self._asked)

    # Start.

    def prepare(self) -> None:
        """The broker's streams and the copies are open."""
        if self._awaited:
            self._channels().ownership.suspend()
            names = ", ".join(map(self._called, self._awaited))
            text = "this node delivers from its channels when its mirrors have reported that none was promoted: %s"
            log.info(text, names)
        else:
            self._resume()

    def _resume(self) -> None:
        """Deliver from the channels that this node owns, unless a mirror still has to report."""
        if not self._awaited and not self._stepping_down:
            if self._channels().ownership.suspended:
                self._channels().ownership.unsuspend()
            for guid in self._held:
                self._deliver(guid)

    # What is asked.

    def deliverer(self, guid: str) -> int | None:
        """The link to the node that delivers from the channels of a node."""
        owner = self.owners.get(guid).owner
        if owner == self._runtime.guid:
            return SELF if guid in self._open else None
        return next((conn for conn, node in self._calls.nodes.items() if node.guid == owner), None)

    def owns(self, guid: str) -> bool:
        """Whether a node still owns its streams, so that a mirror may copy them from it."""
        return self.owners.get(guid).owner == guid

    @property
    def held(self) -> frozenset[str]:
        """The other nodes whose streams this one owns by a promotion."""
        return frozenset(self._held)

    @property
    def mirrored(self) -> set[str]:
        """Other nodes that have a mirror."""
        return {guid for guid, mirrors in self._mirrors.items() if mirrors}

    def why_waiting(self, guid: str, stream: str) -> str | None:
        """Why no node delivers from a copy that is here."""
        if guid in self._open or all(copy.name != stream for copy in self.parts.copies(guid)):
            return None
        called = self._called(guid)
        return f"the channels of {called} wait for that node, or until 'busway cluster promote {guid[:8]}' at a mirror"

    def figures(self) -> dict[str, Any]:
        linked = {node.guid for node in self._calls.nodes.values()}
        waiting = {copy.copied for copy in self._copies() if self.owns(copy.copied)} - linked
        return {
            "delivers": not (self._awaited or self._stepping_down),
            "awaits": sorted(self._awaited),
            "owns": [{"guid": guid, "epoch": self.owners.get(guid).epoch} for guid in sorted(self._open)],
            "waiting": sorted(waiting),
            "promotions": self.promotions,
            "set_aside": set_aside.listed(self._runtime.folder),
        }

    def _copies(self) -> Iterable[Copy]:
        return () if self.parts.replica is None else self.parts.replica.every()

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._tell(conn)
        self._changed(node.guid)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        node = self._calls.nodes.get(conn)
        guids = [one.guid for one in self.owners.known] + ([] if node is None else [node.guid])
        self._runtime.loop.call_soon(lambda: [self._changed(guid) for guid in guids])

    def mirror_joined(self, guid: str) -> None:
        """Another node copies streams that this one owns: it may be promoted."""
        if self._known.add_heir(guid):
            self._tell_all()

    def _tell(self, conn: int) -> None:
        self._calls.tell(conn, REPORT, Report(self.owners.known, self.parts.served, tuple(self._known.heirs)))

    def _tell_all(self) -> None:
        for conn in self._calls.nodes:
            self._tell(conn)
        self._runtime.loop.call_soon(self._runtime.flush)

    def _reported(self, conn: int, _: int, report: Report) -> None:
        node = self._calls.nodes[conn]
        self._mirrors[node.guid] = report.mirrors
        if news := [owner for owner in report.owners if self.owners.learn(owner)]:
            self._save()
            for owner in news:
                self._learned(owner)
            self._tell_all()
        self.parts.follow(conn, node, report.serves)
        self._awaited.discard(node.guid)
        self._resume()

    def _learned(self, owner: Owner) -> None:
        """Another node has been promoted."""
        self._retire(owner)
        self._changed(owner.guid)
        if owner.guid in {self._runtime.guid, *self._held}:
            self._step_down(owner)

    def _retire(self, owner: Owner) -> None:
        """No node has the guid of a replaced node any more, so nothing waits for it as a mirror."""
        if owner.owner != owner.guid:
            self._known.drop(owner.guid)
            self._awaited.discard(owner.guid)

    def _save(self) -> None:
        try:
            self._file.save(Content(list(self.owners.known), sorted(self._held)))
        except BusError as error:
            log.warning("%s: this node learns of the promotion again when it restarts", error.reason)

    # This node was replaced.

    def _step_down(self, owner: Owner) -> None:
        whose = "this node" if owner.guid == self._runtime.guid else self._called(owner.guid)
        new = self._called(owner.owner)
        text = f"{new} owns the streams of {whose} since epoch {owner.epoch}: this node restarts and copies them from there"
        self._report("replaced", owner.guid, text)
        if self._stepping_down:
            return
        self._stepping_down = True
        self._channels().ownership.suspend()
        self._channels().ownership.refuse(f"{new} owns the stream now")
        for guid in list(self._open):
            self._open.discard(guid)
            self._channels().ownership.release(guid)
        for stream in self._streams.by_name.values():
            if not stream.config.in_database:
                stream.wait_for_mirror(yes=True)
                stream.log.rest(True)
        self._runtime.loop.call_soon(self._restart)

    # This node is promoted.

    async def promote(self, node: str, *, force: bool) -> dict[str, Any]:
        """Own the streams of a failed node. Its name, or the begin of its guid, says which. Raises Rejected."""
        guid = self._find(node)
        if guid == self._runtime.guid:
            return self._promote_self(force=force)
        self._refuse_running(guid)
        if guid in self._promoting:
            raise Rejected(f"this node is being promoted in place of {self._called(guid)} already")
        self._promoting.add(guid)
        try:
            parts = [guid, *(self.owners.of(guid) if self.owns(guid) else ())]
            missing = [text for part in parts for text in self._missing(part)] + await self._ask_others(guid)
            self._refuse_running(guid)  # it may have returned
            if missing and not force:
                raise Rejected(
                    f"the copy of {self._called(guid)} may be incomplete: {'; '.join(missing)};"
                    " start that node again, or repeat the promotion with --force"
                )
            return self._own(parts) | {"missing": missing}
        finally:
            self._promoting.discard(guid)

    def _find(self, node: str) -> str:
        candidates = {self._runtime.guid, *(copy.copied for copy in self._copies())}
        named = {guid for guid in candidates if self._name_of(guid) == node}
        found = named or {guid for guid in candidates if len(node) >= _SHORTEST and guid.startswith(node)}
        found = {guid for guid in found if self.deliverer(guid) is None} or found
        if len(found) == 1:
            return found.pop()
        which = ", ".join(sorted(map(self._called, found or candidates - {self._runtime.guid}))) or "no node"
        raise Rejected(
            f"{'no' if not found else 'more than one'} node {node!r} has copies here; there are those of {which}"
        )

    def _refuse_running(self, guid: str) -> None:
        owner = self.owners.get(guid)
        if owner.owner == self._runtime.guid:
            raise Rejected(f"this node owns the streams of {self._called(guid)} already, since epoch {owner.epoch}")
        if any(node.guid == owner.owner for node in self._calls.nodes.values()):
            raise Rejected(f"{self._called(owner.owner)} runs and owns these streams: stop it first")

    def _missing(self, part: str) -> list[str]:
        """What the copies of a node may lack, as far as this mirror knows."""
        copies, replica = self.parts.copies(part), self.parts.follower(part)
        if replica is None or not copies:
            return [f"there is no copy of the streams of {self._called(part)}"]
        missing = [f"{self._called(mirror)} mirrors it, too, and is not linked" for mirror in self._others(part)]
        if self._awaited:
            missing.append(f"this node itself waits for {', '.join(map(self._called, self._awaited))}")
        missing += replica.missing(copies)
        return missing

    def _others(self, part: str) -> set[str]:
        linked = {node.guid for node in self._calls.nodes.values()}
        return set(self._mirrors.get(self.owners.get(part).owner, ())) - {self._runtime.guid} - linked

    async def _ask_others(self, guid: str) -> list[str]:
        """What other nodes know. Raises Rejected if one of them is linked to the node, or is being promoted."""
        owner, nodes = self.owners.get(guid).owner, list(self._calls.nodes.items())
        asked = (self._calls.call(conn, ASK, Claim(guid), _PATIENCE) for conn, _ in nodes)
        missing = []
        for (_, node), answer in zip(nodes, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, Disconnected):
                continue
            if isinstance(answer, BaseException):
                if not isinstance(answer, BusError):
                    raise answer
                missing.append(f"{node} does not answer: {answer.reason}")
                continue
            if answer.linked:
                raise Rejected(f"{self._called(owner)} runs: {node} is linked to it; stop it first")
            if answer.promoting:
                raise Rejected(f"{node} is being promoted in place of {self._called(guid)}")
            mine = {copy.name: copy.log.written for copy in self.parts.copies(guid)}
            more = {name: end - mine.get(name, 0) for name, end in answer.ends.items() if end > mine.get(name, 0)}
            missing += [f"stream {name!r}: {node} has {count} more records" for name, count in more.items()]
        return missing

    async def _asked(self, _: int, claim: Claim) -> Claimed:
        owner = self.owners.get(claim.guid).owner
        linked = owner == self._runtime.guid or any(node.guid == owner for node in self._calls.nodes.values())
        ends = {copy.name: copy.log.written for copy in self.parts.copies(claim.guid)}
        return Claimed(linked, claim.guid in self._promoting, ends)

    def _promote_self(self, *, force: bool) -> dict[str, Any]:
        """Deliver from the own channels again, though a mirror has not reported."""
        if not self._awaited:
            raise Rejected("this node owns its streams and delivers from its channels: there is nothing to promote")
        names = ", ".join(map(self._called, self._awaited))
        if not force:
            raise Rejected(f"{names} may have been promoted: start it, or repeat the promotion with --force")
        for guid in self._awaited:
            self._known.drop(guid)
        self._awaited.clear()
        return self._own([self._runtime.guid]) | {"missing": [f"{names} has not reported"]}

    def _own(self, parts: list[str]) -> dict[str, Any]:
        me = self._runtime.guid
        owners = [
            Owner(
                part, self.owners.next_epoch(part), me, {copy.name: have(copy.log) for copy in self.parts.copies(part)}
            )
            for part in parts
        ]
        held = self._held.union(parts) - {me}
        rest = [owner for owner in self.owners.known if owner.guid not in parts]
        self._file.save(Content([*rest, *owners], sorted(held)))  # raises before anything is changed
        self._held = held
        for owner in owners:
            self.owners.learn(owner)
            self._retire(owner)
            text = (
                f"this node was promoted: it owns the streams of {self._called(owner.guid)} since epoch {owner.epoch}"
            )
            self._report("promoted", owner.guid, text)
        self.promotions += 1
        self._resume()
        self._tell_all()
        streams = sorted({name for owner in owners for name in owner.ends})
        return {"guid": parts[0], "epoch": owners[0].epoch, "streams": streams}

    def _deliver(self, guid: str) -> None:
        """Open the channels of an owned node at the progress that its copies have."""
        if guid in self._open:
            return
        self._open.add(guid)
        for copy in self.parts.copies(guid):
            copy.log.set(**settings(copy.config))  # from now on this node removes old messages
            if copy.progress is not None:
                adopted = copy.adopt(partial(self.parts.progress_written, copy))
                self._channels().ownership.adopt(guid, copy, *adopted)
        self.parts.serve(guid)
        self._changed(guid)
        self._tell_all()

    # Changes of the whole cluster.

    def stream_changed(self, stream: Stream, *, there: bool) -> None:
        """A stream of this node was changed or removed: so are its parts that this node owns."""
        for copy in [copy for guid in self._open for copy in self.parts.copies(guid) if copy.name == stream.name]:
            if there:
                self.parts.configure(copy, stream.config)
                copy.log.set(**settings(copy.config))
            else:
                self._channels().ownership.release_stream(copy.copied, copy.name)
                self.parts.remove(copy)

    def channel_removed(self, stream: str, channel: str) -> None:
        for guid in self._open:
            self._channels().ownership.remove(guid, stream, channel)

    def beat(self) -> None:
        """A second has passed, about."""
        now = self._runtime.loop.time()
        if now >= self._trimmed + _TRIM:
            self._trimmed = now
            for copy in [copy for guid in self._open for copy in self.parts.copies(guid)]:
                copy.trim(environment.time_ns())

    def _called(self, guid: str) -> str:
        return f"{name} ({guid[:8]})" if (name := self._name_of(guid)) else f"node {guid[:8]}"

    def _report(self, kind: str, guid: str, text: str) -> None:
        log.warning("%s", text)
        self._notice(kind, guid, text)
