"""The status of a cluster at one node: the service `$bus/cluster`, and the events below that topic.

The mesh owns it and reports events to it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from busway.broker.admin.events import CLUSTER, ClusterEvents
from busway.cluster.members.actions import Notice
from busway.cluster.node import Node
from busway.common import environment

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.cluster.mesh import Mesh

TRIP: Final = 2
"""The token of a PING that measures a round trip."""
_PATIENCE: Final = 1.0
"""Seconds for links to answer. A link without an answer has no round trip."""
_MIRROR: Final = {
    "mirror": "{node} is a mirror of this node",
    "mirror_gone": "mirror {node} of this node is not linked any more",
    "mirror_trouble": "{node} can't copy the stream {stream!r}: {text}",
    "mirror_copies": "{node} can copy the stream {stream!r} again",
    "mirrored": "acknowledgements of the stream {stream!r} wait for its mirror",
    "unmirrored": "acknowledgements of the stream {stream!r} don't wait for a mirror of this node",
    "mirror_missing": "no node with the name, guid or address {text!r} was seen yet, which this node is to mirror",
}
"""The texts of events about mirrors, by kind."""


class ClusterStatus:
    """The status of a cluster at one node."""

    def __init__(
        self, runtime: "Runtime", events: ClusterEvents, mesh: "Mesh", name: str, *, retained: Callable[[], int]
    ) -> None:
        """`retained` returns the number of retained messages."""
        self._runtime = runtime
        self._events = events
        self._retained = retained
        self._mesh = mesh
        self._name = name
        self._since: dict[str, float] = {}
        """When the link to a node last opened or ended, in seconds since 1970."""
        self._sent: dict[int, float] = {}
        self._trips: dict[int, float] = {}
        self._answered = asyncio.Event()

    # Events.

    def notice(self, notice: Notice) -> None:
        self._answered.set()  # wakes _measure(), which may wait for a closed link
        if notice.kind in {"up", "down"}:
            self._since[notice.guid] = environment.time_ns() / 1e9
        elif notice.kind == "forgotten":
            self._since.pop(notice.guid, None)
        more = {"address": notice.address} if notice.address else {}
        self.tell(notice.kind, notice.text, node=notice.name, guid=notice.guid, **more)

    def tell(self, kind: str, text: str, **fields: Any) -> None:
        """Publish an event to subscribed clients of this node."""
        self._events.tell(f"{CLUSTER}/{kind}", {"cluster": self._name, "kind": kind, **fields}, text)

    def mirror(self, kind: str, about: dict[str, Any]) -> None:
        """Publish an event about this node and its mirrors."""
        stream, text = about.get("stream", ""), about.get("text", "")
        more = {"stream": stream} if stream else {}
        described = _MIRROR[kind].format(node=about.get("name") or about.get("guid", "")[:8], stream=stream, text=text)
        self.tell(kind, described, node=about.get("name", ""), guid=about.get("guid", ""), **more)

    def definition(self, kind: str, key: str, text: str, node: Node | None) -> None:
        """Publish that a node (None: this one) could not apply a stream or channel, or has done so now."""
        stream, _, channel = key.partition("/")
        name, guid = (self._runtime.name, self._runtime.guid) if node is None else (node.name, node.guid)
        more = {"stream": stream} | ({"channel": channel} if channel else {})
        self.tell(kind, text, node=name, guid=guid, **more)

    def pong(self, conn: int) -> None:
        if (sent := self._sent.pop(conn, None)) is not None:
            self._trips[conn] = environment.perf_counter() - sent
            self._answered.set()

    # Figures.

    async def figures(self) -> dict[str, Any]:
        """All figures, with round trips measured now."""
        await self._measure()
        members, runtime = self._mesh.members, self._runtime
        linked = members.linked
        stats = runtime.engine.stats()
        mirroring = self._mesh.replication.figures() | self._mesh.promotion.figures()
        behind = {mirror["guid"]: mirror["behind"] for mirror in mirroring["mirrors"]}
        others = {node.guid: node for node in members.known}
        for conn in linked.values():  # prefer the linked incarnation
            if (node := members.node_of(conn)) is not None:
                others[node.guid] = node
        return {
            "cluster": self._name,
            "guid": runtime.guid,
            "nodes": [
                _node(members.me) | {"state": "this", "link": None},
                *(
                    _node(node)
                    | {
                        "state": self._state(guid),
                        "link": self._link(guid, linked.get(guid)) | {"mirror_behind": behind.get(guid)},
                    }
                    for guid, node in others.items()
                ),
            ],
            "missing": [
                {
                    "name": server.name,
                    "addresses": list(server.addresses),
                    "state": "refused" if server.refused else "unreached",
                    "why": server.why,
                }
                for server in members.missing
            ],
            "lacking": self._mesh.agreement.figures(),
            "mirroring": mirroring,
            "interest": stats["interest"],
            "kept": self._retained(),
            "refused": self._mesh.reports.refused,
            "conflicts": self._mesh.reports.conflicts,
        }

    def stats(self) -> dict[str, int]:
        """Counters in addition to those of the engine."""
        members = self._mesh.members
        return {
            "nodes": 1 + len({*members.linked, *(node.guid for node in members.known)}),
            "nodes_refused": self._mesh.reports.refused,
            "node_conflicts": self._mesh.reports.conflicts,
            "promotions": self._mesh.promotion.promotions,
            "records_set_aside": self._mesh.promotion.aside,
        }

    def _state(self, guid: str) -> str:
        members = self._mesh.members
        if guid in members.linked:
            return "linked"
        if not self._mesh.promotion.owns(guid):
            return "replaced"
        return "stopped" if guid in members.stopped else "lost"

    def _link(self, guid: str, conn: int | None) -> dict[str, Any]:
        """Figures of a link. Its subscriptions are those of the other node."""
        link: dict[str, Any] = {"up": conn is not None, "since": self._since.get(guid)}
        if conn is None or (session := self._runtime.sessions.get(conn)) is None:
            return link | {"why": self._mesh.members.why(guid)}
        figures = self._runtime.engine.connection(conn)
        return link | {
            "peer": session.peer(),
            "over": session.scheme,
            "round_trip": self._trips.get(conn),
            "subscriptions": figures["subscriptions"],
            "services": figures["services"],
            "messages_in": figures["messages_received"],
            "messages_out": figures["messages_delivered"],
            "bytes_in": figures["received_bytes"],
            "bytes_out": figures["sent_bytes"],
            "waiting": figures["outbox_bytes"],
            "dropped": figures["messages_dropped"],
        }

    async def _measure(self) -> None:
        conns = set(self._mesh.members.linked.values())
        self._trips = {conn: trip for conn, trip in self._trips.items() if conn in conns}
        now = environment.perf_counter()
        for conn in conns - self._sent.keys():  # another call may wait for the same answer
            self._sent[conn] = now
            self._runtime.engine.ping(conn, TRIP)
        self._runtime.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                while conns & self._sent.keys() & set(self._mesh.members.linked.values()):
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            for conn in conns & self._sent.keys():
                self._sent.pop(conn, None)
                self._trips.pop(conn, None)


def _node(node: Node) -> dict[str, Any]:
    return {"name": node.name, "guid": node.guid, "addresses": list(node.addresses), "started": node.since / 1e9}
