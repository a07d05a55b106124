"""Reports links that come, fail and end: in the log, to clients whose server list changes, and as counters."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from busway.cluster.links.links import Links
from busway.cluster.members.actions import Notice
from busway.cluster.node import Node
from busway.cluster.status import ClusterStatus

if TYPE_CHECKING:
    from busway.broker.server_list import ServerList

log = logging.getLogger("busway.cluster")
link_log = logging.getLogger("busway.cluster.links")
"""Links that come up, for operators who want to see also that all is well."""

_LEVELS: Final = {"linked": logging.INFO, "forgotten": logging.INFO}
"""Log levels of the states that need no warning."""


class LinkReports:
    """What one node reports about its links."""

    def __init__(self, server_list: "Callable[[], ServerList]", cluster: str, status: ClusterStatus) -> None:
        self._server_list = server_list
        self._cluster = cluster
        self._status = status
        self.refused = 0
        self.conflicts = 0
        self._lost: set[str] = set()
        """Nodes whose links were lost without a CLOSE."""
        self._down: set[str] = set()
        """Nodes of which the log has reported that their links were lost."""
        self._shared: set[str] = set()
        """Names of two nodes that the log has reported."""

    def notice(self, notice: Notice, links: Links) -> None:
        """Something happened to a link or a node."""
        if notice.kind in {"up", "down", "forgotten"}:
            self._server_list().changed()
            self._count_lost(notice, stopping=links.started and notice.guid in links.members.stopped)
        self.refused += notice.times * (notice.kind == "refused")
        self.conflicts += notice.times * (notice.kind == "conflict")
        state = self._state(notice)
        level = logging.DEBUG if links.stopped else _LEVELS.get(state, logging.WARNING)
        if not (notice.guid or notice.address):
            log.log(level, "cluster %s: %s", self._cluster, notice.text)
            return
        if notice.guid:
            node = f"{notice.name or 'a node'} ({notice.guid[:8]})"
        else:
            node = f"{notice.name} ({notice.address})" if notice.name else notice.address
        text = f": {notice.text}" * bool(notice.text)
        (link_log if notice.kind == "up" else log).log(
            level, "cluster %s: %s is %s%s", self._cluster, node, state, text
        )
        if notice.kind == "up" and not links.stopped:
            self._compare_names(notice, links)

    def conflict(self, node: Node | None, topic: str) -> None:
        """Two nodes began to serve a topic at the same time; each serves the clients of its own node."""
        self.conflicts += 1
        log.warning("cluster %s: %r is served here and at %s", self._cluster, topic, node)
        name, guid = (node.name, node.guid) if node else ("", "")
        self._status.tell("conflict", f"{topic!r} is served here and at {node}", node=name, guid=guid, topic=topic)

    def _count_lost(self, notice: Notice, *, stopping: bool) -> None:
        """Tell clients of links that were lost without a CLOSE and are back: messages of that node may be missing."""
        if notice.kind == "down" and not stopping:
            self._lost.add(notice.guid)
        elif notice.guid in self._lost:
            self._lost.discard(notice.guid)
            if notice.kind == "up":
                self._server_list().apart()

    def _state(self, notice: Notice) -> str:
        """The state of a node in a word. If the log has reported that it is down, its return is a warning, too."""
        again = notice.guid in self._down
        if notice.kind == "down":
            self._down.add(notice.guid)
        elif notice.kind in {"up", "forgotten"}:
            self._down.discard(notice.guid)
        if notice.kind == "up":
            return "linked again" if again else "linked"
        return "in conflict" if notice.kind == "conflict" else notice.kind

    def _compare_names(self, notice: Notice, links: Links) -> None:
        """Warn once of a name that two nodes have, since commands that name a node may then mean either of them."""
        members = links.members
        linked = [node for conn in members.linked.values() if (node := members.node_of(conn)) is not None]
        nodes = (members.me, *linked)
        other = next((one for one in nodes if one.name == notice.name and one.guid != notice.guid), None)
        if other is not None and notice.name and notice.name not in self._shared:
            self._shared.add(notice.name)
            log.warning(
                "cluster %s: two nodes have the name %r, %s and %s: give each its own",
                self._cluster,
                notice.name,
                other.guid[:8],
                notice.guid[:8],
            )
