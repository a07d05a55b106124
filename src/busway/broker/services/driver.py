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
    from busway.broker.peers import ServicePeers
    from busway.broker.runtime import Runtime


class ServicesDriver:
    """The shared services of one broker."""

    def __init__(self, runtime: "Runtime", peers: "ServicePeers") -> None:
        self._runtime = runtime
        self._peers = peers
        self.asking = SharedRequests(each=runtime.settings.provider_timeout, size=runtime.settings.outbox)

    def join(self, conn: int, service: int, topic: str, flags: int) -> None:
        """Add a client that shares a service, or another node with such clients."""
        session = self._runtime.sessions.get(conn)
        if session is None:
            return
        name = session.name or f"{session.session:016x}"
        topic, asks, providers = topic.removeprefix("/"), bool(flags & ASKS), self.asking.providers
        if session.node:
            providers.join_remote(conn, service, topic, name, asks=asks)
        else:
            providers.join(conn, service, topic, name, asks=asks, scope=scope_of(flags))

    def forget(self, conn: int) -> None:
        self.do(self.asking.gone(conn, self._runtime.loop.time()))

    def expire(self, now: float) -> None:
        self.do(self.asking.expire(now))

    def deadline(self) -> float | None:
        return self.asking.deadline()

    def figures(self) -> list[dict[str, Any]]:
        """The figures for `$bus/info`."""
        return list(self.asking.providers.figures(self._runtime.loop.time()))

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out actions. A request that a connection can't take goes to the next provider."""
        engine, waiting = self._runtime.engine, deque(actions)
        # At once, also without other actions: later another connection may have the same number.
        waiting.extend(self.asking.cancelled_calls())
        while waiting:
            action = waiting.popleft()
            match action:
                case Answer():
                    engine.answer(*action)
                case Ask() | Call():
                    if not (engine.ask if isinstance(action, Ask) else engine.call)(*action):
                        session = self._runtime.sessions.get(action.conn)
                        gone = session is None or session.closing
                        waiting.extend(self.asking.undeliverable(action.call, self._runtime.loop.time(), gone=gone))
                case Willing():
                    engine.willing(*action)
                case CancelCall():
                    engine.call_off(*action)
                case Terms():
                    self._peers.terms(*action)
                case Moved():
                    self._peers.moved(*action)
            waiting.extend(self.asking.cancelled_calls())
        self._runtime.arm()

    # Events of the engine.

    def request(self, event: tuple[Any, ...]) -> None:
        _, conn, number, flags, topic, each_ms, limit_ms, frame = event
        session = self._runtime.sessions.get(conn)
        self.do(
            self.asking.request(
                conn,
                number,
                topic,
                frame,
                self._runtime.loop.time(),
                gather=bool(flags & GATHER),
                each=each_ms / 1000,
                limit=limit_ms / 1000,
                scope=scope_of(flags),
                remote=session is not None and session.node,
            )
        )

    def cancel(self, event: tuple[Any, ...]) -> None:
        _, conn, number = event
        self.asking.cancel(conn, number, self._runtime.loop.time())
        self.do(())

    def accept(self, event: tuple[Any, ...]) -> None:
        _, conn, call, code = event
        self.do(self.asking.accepted(conn, call, self._runtime.loop.time(), willing=code == Code.OK))

    def answer(self, event: tuple[Any, ...]) -> None:
        _, conn, call, flags, code, fields, payload = event
        self.do(self.asking.answered(conn, call, flags, code, fields, payload, self._runtime.loop.time()))

    def unserve(self, event: tuple[Any, ...]) -> None:
        _, conn, service, _ = event
        if (session := self._runtime.sessions.get(conn)) is not None:
            session.served.pop(service, None)
        self.do(self.asking.leave(conn, service, self._runtime.loop.time()))

    def provider(self, event: tuple[Any, ...]) -> None:
        """Another node has clients that share a service."""
        _, conn, service, topic, flags = event
        self.join(conn, service, topic, flags)

    def ask(self, event: tuple[Any, ...]) -> None:
        """Another node asks whether a provider here accepts a request."""
        _, conn, number, topic, frame = event
        self.do(self.asking.ask(conn, number, topic, frame, self._runtime.loop.time()))
