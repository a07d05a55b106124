"""The links of one broker: carries out the actions of its membership with connections and timers.

The mesh owns it, and passes the hub's frames and time. Outgoing and incoming connections are sessions like those of
clients. A HELLO that names a node leads here. The protocol handlers of the mesh process the NODE frames.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import PROTOCOL
from busway.broker.admission import AGENT
from busway.broker.session import Session
from busway.cluster.config import Cluster
from busway.cluster.links.key_proof import NONCE, holds
from busway.cluster.links.peer import Outgoing, Peer, new_nonce
from busway.cluster.members.actions import Admit, Dial, Left, Notice, Probe, Refuse, Tell
from busway.cluster.members.advertise import advertised
from busway.cluster.members.discovery import Discovery
from busway.cluster.members.membership import Membership
from busway.cluster.members.servers_file import listed
from busway.cluster.node import Node, Stranger, pack_sightings, plain, read_node, read_sightings
from busway.cluster.protocol import MEMBERS, PROOF, SILENCE, NodeProtocolHandler
from busway.common import environment
from busway.errors import BusError, Code
from busway.transport import dial, parse

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

_PROBE: Final = 1
"""The token of a PING that probes whether a link is alive."""


class Links:
    """All links of one broker."""

    def __init__(
        self,
        runtime: "Runtime",
        cluster: Cluster,
        handlers: Sequence[NodeProtocolHandler],
        *,
        notice: Callable[[Notice], object],
        stopping: Callable[[str], object],
    ) -> None:
        """`notice` is called when a link opens, fails or ends; `stopping` when a node announces its stop."""
        self._runtime = runtime
        self._cluster = cluster
        self._handlers = tuple(handlers)
        self._by_kind = {kind: handler for handler in handlers for kind in handler.kinds}
        self._notice = notice
        self._stopping = stopping
        self._peers: dict[int, Peer] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._members: Membership | None = None
        self._discovery: Discovery | None = None
        self._discovery_task: asyncio.Task[None] | None = None

    # From start to stop.

    def start(self, addresses: tuple[str, ...]) -> None:
        """The broker listens at these addresses now: dial the other nodes."""
        runtime = self._runtime
        me = Node(
            runtime.guid,
            environment.randbits(63) + 1,
            self._cluster.name,
            runtime.name,
            tuple(self._cluster.advertise) or advertised(addresses),
            runtime.since,
            runtime.settings.frame,
        )
        self._members = Membership(me, listed(self._cluster.servers), chance=environment.chance)
        self._members.start(runtime.loop.time())
        self._act()
        if where := self._cluster.discover:
            self._discovery = Discovery(me, self._found, () if where is True else where)
            self._discovery_task = runtime.loop.create_task(self._discovery.start(), name="busway discovery")

    async def stop(self) -> None:
        """Stop dialling. The links end with the hub's other connections."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._dials.values())
        for task in tasks:
            task.cancel()
        if self._discovery_task is not None and self._discovery is not None:
            await asyncio.gather(self._discovery_task, return_exceptions=True)
            await self._discovery.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def started(self) -> bool:
        """Whether the broker listens, so that its membership is known."""
        return self._members is not None

    @property
    def stopped(self) -> bool:
        return self._stopped

    def node_of(self, conn: int) -> Node | None:
        """The node behind a connection."""
        peer = self._peers.get(conn)
        return peer.node if peer is not None else None

    @property
    def members(self) -> Membership:
        if self._members is None:
            raise RuntimeError("the links were not started")
        return self._members

    # Events of the hub.

    def greeted(self, session: Session, version: int, node: Any) -> None:
        """A HELLO of another node has arrived."""
        if self._members is None or self._stopped:
            session.close(Code.GOING_AWAY, "this broker is not ready for links")
            return
        peer = Peer(session, None, new_nonce())
        self._peers[session.conn] = peer
        self._introduced(session.conn, peer, version, node)

    def welcomed(self, conn: int, version: int, packed: bytes) -> None:
        """The answer to a HELLO of this node has arrived."""
        if (peer := self._peers.get(conn)) is None:
            return
        try:
            welcome = msgspec.msgpack.decode(packed)
            node = welcome.get("node") if isinstance(welcome, dict) else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            node = None
        if node is None:
            self._failed(conn, Code.HANDSHAKE, "the broker there is in no cluster")
        else:
            self._introduced(conn, peer, version, node)

    def received(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """A NODE frame has arrived."""
        peer = self._peers.get(conn)
        if peer is None:
            return
        if kind == PROOF:
            peer.received_proof = body
            self._check_proof(conn, peer)
        elif peer.linked and (kind == MEMBERS or kind in self._by_kind):
            try:
                if kind == MEMBERS:
                    self.members.heard(read_sightings(body), self._now)
                else:
                    self._by_kind[kind].heard(conn, kind, number, body)
            except Stranger as error:
                self._fault(peer, str(error))
                return
        else:
            self._fault(peer, f"unexpected NODE frame of type {kind}")
            return
        self._act()

    def beat(self) -> None:
        """A second has passed: check whether the links are alive. A failed host closes no connection."""
        engine = self._runtime.engine
        for conn in engine.idle(1):
            peer = self._peers.get(conn)
            if peer is not None and peer.linked:
                engine.ping(conn, 0)
        for conn in engine.idle(SILENCE):
            peer = self._peers.get(conn)
            if peer is not None and peer.linked and not peer.session.paused:
                self._failed(conn, Code.IDLE, f"no frame received for {SILENCE} s")

    def synced(self, conn: int) -> None:
        """The other end of a link has sent all its subscriptions."""
        if (peer := self._peers.get(conn)) is not None:
            peer.synced = True

    def pong(self, conn: int, token: int) -> None:
        peer = self._peers.get(conn)
        if peer is not None and peer.linked:
            for handler in self._handlers:
                handler.pong(conn, token)
        if peer is not None and token == _PROBE:
            peer.trip = self._now - peer.probed_at
            self.members.alive(conn, self._now)
            self._act()

    def closed(self, conn: int, code: int, text: str) -> None:
        """The other side has sent CLOSE."""
        text = plain(text)
        peer = self._peers.get(conn)
        if code == Code.GOING_AWAY and peer is not None and peer.linked and peer.node is not None:
            self.members.stops(conn)
        peer = self._gone(conn)
        if peer is None:
            return
        if peer.attempt is not None and peer.node is None:
            self.members.failed(peer.attempt, self._now, text, code)
        self.members.lost(conn, self._now, text, code)
        self._act()

    def forget(self, conn: int) -> None:
        """The connection has ended."""
        peer = self._peers.get(conn)
        self.closed(conn, Code.OK, (peer.session.fault if peer else "") or "the connection was lost")

    # Inside.

    @property
    def _now(self) -> float:
        return self._runtime.loop.time()

    def _introduced(self, conn: int, peer: Peer, version: int, node: Any) -> None:
        if version < 1:
            self._failed(conn, Code.VERSION, f"this node supports the versions 1 to {PROTOCOL}")
            return
        try:
            peer.node = read_node(node)
            nonce = node["nonce"]
            if not isinstance(nonce, bytes) or len(nonce) != NONCE:
                raise Stranger(f"a nonce must have {NONCE} bytes")  # noqa: TRY301 - like errors of read_node
        except (Stranger, KeyError, TypeError) as error:
            self._runtime.faults += 1
            self._failed(conn, Code.HANDSHAKE, f"node: {error}")
            return
        peer.other_nonce = nonce
        self.members.greeted(conn, peer.node, self._now, peer.attempt)
        self._act()

    def _failed(self, conn: int, code: int, text: str) -> None:
        """Close a connection, and end its attempt."""
        peer = self._gone(conn)
        if peer is None:
            return
        peer.session.close(code, text)
        if peer.attempt is not None and peer.node is None:
            self.members.failed(peer.attempt, self._now, text, code)
        self.members.lost(conn, self._now, text, code)
        self._act()

    def _gone(self, conn: int) -> Peer | None:
        """Drop a connection from the peers."""
        peer = self._peers.pop(conn, None)
        if peer is not None and peer.linked:
            for handler in self._handlers:
                handler.closed(conn, self._now)
            self._runtime.arm()
        return peer

    def _fault(self, peer: Peer, text: str) -> None:
        self._runtime.faults += 1
        self._failed(peer.session.conn, Code.PROTOCOL, text)

    def _check_proof(self, conn: int, peer: Peer) -> None:
        """Open the link if the other side has sent a valid proof and this side has admitted it."""
        if peer.received_proof is None or not peer.admitted or peer.linked or peer.node is None:
            return
        if not holds(peer.received_proof, peer.proof(self._cluster.secret, self.members.me.guid, ours=False)):
            self._failed(conn, Code.UNAUTHORIZED, self._other_key(peer, peer.received_proof))
            return
        try:
            self._runtime.engine.link(conn)
        except BusError:
            return  # CLOSE arrived together with the proof and is handled next
        peer.linked = True
        peer.session.proved()
        self._limit(conn, peer.node)
        for handler in self._handlers:
            handler.opened(conn, peer.node)
        self.members.proved(conn, self._now)

    def _other_key(self, peer: Peer, proof: bytes) -> str:
        """Why a proof is wrong, for the logs of both sides."""
        me = self.members.me
        if not self._cluster.secret:
            return f"{peer.node} has a key of the cluster, and {me} has none"
        if holds(proof, peer.proof(b"", me.guid, ours=False)):
            return f"{me} has a key of the cluster, and {peer.node} has none"
        return "the two nodes have different cluster keys"

    def _limit(self, conn: int, node: Node) -> None:
        """Limit the frames of a link to the frame size of the other node."""
        self._runtime.engine.limit_link(conn, node.frame)
        ours = self._runtime.settings.frame
        if node.frame < ours:
            log.warning(
                "cluster %s: %s accepts messages up to %d bytes, this node up to %d: longer ones are not sent to it",
                self._cluster.name,
                node,
                node.frame,
                ours,
            )

    def _act(self) -> None:
        """Carry out the actions of the membership, and set its timer."""
        members = self.members
        while actions := members.take():
            for action in actions:
                match action:
                    case Dial():
                        self._dial(action)
                    case Admit():
                        self._admit(action.conn)
                    case Refuse():
                        self._refuse(action)
                    case Probe(conn):
                        self._peers[conn].probed_at = self._now
                        self._runtime.engine.ping(conn, _PROBE)
                    case Tell(conn, sightings):
                        self._runtime.engine.node(conn, MEMBERS, 0, pack_sightings(sightings))
                    case Left(guid):
                        self._stopping(guid)
                    case Notice():
                        self._notice(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := members.due) is not None and not self._stopped:
            self._timer = self._runtime.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.members.tick(self._now)
        self._act()
        self._runtime.flush()

    def _admit(self, conn: int) -> None:
        peer = self._peers[conn]
        if not self._welcome(conn, peer):
            return
        peer.admitted = True
        self._runtime.engine.node(conn, PROOF, 0, peer.proof(self._cluster.secret, self.members.me.guid, ours=True))
        self._check_proof(conn, peer)

    def _welcome(self, conn: int, peer: Peer) -> bool:
        if peer.welcomed or peer.node is None:
            return True
        peer.welcomed = True
        runtime, node = self._runtime, peer.node
        runtime.clients += 1
        peer.session.admitted(runtime.clients, node.incarnation, node.name, proof=True)
        peer.session.node = True
        if peer.attempt is not None:
            return True
        welcome = {
            "name": runtime.name,
            "guid": runtime.guid,
            "client": runtime.clients,
            "agent": AGENT,
            "heartbeat": runtime.settings.heartbeat,
            "node": self._introduction(peer.nonce),
        }
        packed = msgspec.msgpack.encode(welcome)
        return runtime.engine.admit_node(conn, node.incarnation, node.name, runtime.clients, PROTOCOL, packed)

    def _introduction(self, nonce: bytes) -> Mapping[str, Any]:
        return {**msgspec.to_builtins(self.members.me), "nonce": nonce}

    def _refuse(self, action: Refuse) -> None:
        peer = self._gone(action.conn)
        if peer is None:
            return
        if action.welcome:
            self._welcome(action.conn, peer)
        peer.session.close(action.code, action.text)

    # Dialling.

    def _found(self, address: str) -> None:
        """An announcement on the local network names this address of a node of the cluster."""
        if not self._stopped:
            self.members.hint(address, self._now)
            self._act()
            self._runtime.flush()

    def _dial(self, action: Dial) -> None:
        task = self._runtime.loop.create_task(self._dial_addresses(action), name=f"busway dial {action.addresses[0]}")
        self._dials[action.attempt] = task
        task.add_done_callback(lambda _: self._dials.pop(action.attempt, None))

    def _connected(self, attempt: int, nonce: bytes, session: Outgoing) -> None:
        """A connection is open, and HELLO is being sent."""
        self._peers[session.conn] = Peer(session, attempt, nonce)

    async def _dial_addresses(self, action: Dial) -> None:
        """Dial one address after the other until one answers."""
        runtime, reasons = self._runtime, []
        for text in action.addresses:
            address = parse(text)
            nonce = new_nonce()
            hello = {
                "name": runtime.name,
                "session": self.members.me.incarnation,
                "credentials": self._cluster.credentials,
                "agent": AGENT,
                "node": self._introduction(nonce),
            }
            connected = partial(self._connected, action.attempt, nonce)
            factory = partial(Outgoing, runtime, address.scheme, msgspec.msgpack.encode(hello), connected)
            try:
                await dial(address, factory, tls=self._cluster.tls, timeout=action.timeout)
            except BusError as error:
                reasons.append(error.reason)
            else:
                runtime.flush()
                return
        if not self._stopped:
            log.debug("no answer at %s: %s", ", ".join(action.addresses), reasons)
            self.members.failed(action.attempt, self._now, "; ".join(reasons))
            self._act()
            runtime.flush()
