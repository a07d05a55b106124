"""The driver of shared services: passes events of the engine to `services.requests`, and carries out its actions.

The hub calls it. Messages between nodes about shared requests go by `ServicePeers`, which the cluster implements.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from busway.broker.flags import ASKS, GATHER, scope_of
from busway.broker.services.actions import Action, Answer, Ask, Call, CancelCall, Moved, Terms, Willing
from busway.broker.services.requests import SharedRequests
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.peers import ServicePeers


class ServicesDriver:
    """The shared services of one hub."""

    def __init__(self, hub: "Hub", peers: "ServicePeers") -> None:
        self._hub = hub
        self._peers = peers
        self.asking = SharedRequests(each=hub.settings.provider_timeout, size=hub.settings.outbox)

    def join(self, conn: int, service: int, topic: str, flags: int) -> None:
        """Add a client that shares a service, or another node with such clients."""
        session = self._hub.sessions.get(conn)
        if session is None:
            return
        name = session.name or f"{session.session:016x}"
        topic, asks, providers = topic.removeprefix("/"), bool(flags & ASKS), self.asking.providers
        if session.node:
            providers.join_remote(conn, service, topic, name, asks=asks)
        else:
            providers.join(conn, service, topic, name, asks=asks, scope=scope_of(flags))

    def forget(self, conn: int) -> None:
        self.do(self.asking.gone(conn, self._hub.loop.time()))

    def expire(self, now: float) -> None:
        self.do(self.asking.expire(now))

    def deadline(self) -> float | None:
        return self.asking.deadline()

    def figures(self) -> list[dict[str, Any]]:
        """The figures for `$bus/info`."""
        return list(self.asking.providers.figures(self._hub.loop.time()))

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out actions. A request that a connection can't take goes to the next provider."""
        engine, waiting = self._hub.engine, deque(actions)
        # At once, also without other actions: later another connection may have the same number.
        waiting.extend(self.asking.cancelled_calls())
        while waiting:
            action = waiting.popleft()
            match action:
                case Answer():
                    engine.answer(*action)
                case Ask() | Call():
                    if not (engine.ask if isinstance(action, Ask) else engine.call)(*action):
                        session = self._hub.sessions.get(action.conn)
                        gone = session is None or session.closing
                        waiting.extend(self.asking.undeliverable(action.call, self._hub.loop.time(), gone=gone))
                case Willing():
                    engine.willing(*action)
                case CancelCall():
                    engine.call_off(*action)
                case Terms():
                    self._peers.terms(*action)
                case Moved():
                    self._peers.moved(*action)
            waiting.extend(self.asking.cancelled_calls())
        self._hub.clock.arm()


# The functions of the hub's event table.


def request(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, number, flags, topic, each_ms, limit_ms, frame = event
    services, session = hub.services, hub.sessions.get(conn)
    services.do(
        services.asking.request(
            conn,
            number,
            topic,
            frame,
            hub.loop.time(),
            gather=bool(flags & GATHER),
            each=each_ms / 1000,
            limit=limit_ms / 1000,
            scope=scope_of(flags),
            remote=session is not None and session.node,
        )
    )


def cancel(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, number = event
    hub.services.asking.cancel(conn, number, hub.loop.time())
    hub.services.do(())


def accept(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, call, code = event
    hub.services.do(hub.services.asking.accepted(conn, call, hub.loop.time(), willing=code == Code.OK))


def answer(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, call, flags, code, fields, payload = event
    hub.services.do(hub.services.asking.answered(conn, call, flags, code, fields, payload, hub.loop.time()))


def unserve(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, service, _ = event
    if (session := hub.sessions.get(conn)) is not None:
        session.served.pop(service, None)
    hub.services.do(hub.services.asking.leave(conn, service, hub.loop.time()))


def provider(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Another node has clients that share a service."""
    _, conn, service, topic, flags = event
    hub.services.join(conn, service, topic, flags)


def ask(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Another node asks whether a provider here accepts a request."""
    _, conn, number, topic, frame = event
    hub.services.do(hub.services.asking.ask(conn, number, topic, frame, hub.loop.time()))
