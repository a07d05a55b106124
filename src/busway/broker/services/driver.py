"""Requests on shared services on their way: from the engine's events to `asking`, and what that wants done back to the engine.

What nodes tell each other about them besides frames of messages goes by `nodes`, which the cluster puts here.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from busway.broker.flags import ASKS, GATHER, scope_of
from busway.broker.services.actions import Action, Answer, Ask, Call, CancelCall, Moved, Terms, Willing
from busway.broker.services.requests import SharedRequests
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Words(Protocol):
    """What nodes say about requests of each other's clients."""

    def terms(self, conn: int, call: int, each: float) -> None:
        """So long may each provider take, of what this side has asked or called for."""

    def moved(self, conn: int, number: int) -> None:
        """A request of the other side has gone on to the next."""


class ServicesDriver:
    """The shared services of one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.asking = SharedRequests(each=hub.settings.provider_timeout, size=hub.settings.outbox)
        self.nodes: Words | None = None

    def join(self, conn: int, service: int, topic: str, flags: int) -> None:
        """The engine let a client share in a service, or another node has some who do."""
        session = self._hub.sessions.get(conn)
        if session is None:
            return
        name = session.name or f"{session.session:016x}"
        topic, asks, providers = topic.removeprefix("/"), bool(flags & ASKS), self.asking.providers
        if session.node:
            providers.join_far(conn, service, topic, name, asks=asks)
        else:
            providers.join(conn, service, topic, name, asks=asks, scope=scope_of(flags))

    def forget(self, conn: int) -> None:
        self.do(self.asking.gone(conn, self._hub.loop.time()))

    def expire(self, now: float) -> None:
        self.do(self.asking.expire(now))

    def deadline(self) -> float | None:
        return self.asking.deadline()

    def figures(self) -> list[dict[str, Any]]:
        """For `$bus/info`."""
        return list(self.asking.providers.figures(self._hub.loop.time()))

    def do(self, actions: Iterable[Action]) -> None:
        """Carry it out; what a connection doesn't take goes on to somebody else."""
        engine, waiting = self._hub.engine, deque(actions)
        # Also where there is nothing else to do: later the number of a connection may be somebody else's.
        waiting.extend(self.asking.take_offs())
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
                case Terms() if self.nodes is not None:
                    self.nodes.terms(*action)
                case Moved() if self.nodes is not None:
                    self.nodes.moved(*action)
            waiting.extend(self.asking.take_offs())
        self._hub.clock.arm()


# What the hub's table calls.


def request(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, number, flags, topic, each_ms, limit_ms, frame = event
    sharing, session = hub.services, hub.sessions.get(conn)
    sharing.do(
        sharing.asking.request(
            conn,
            number,
            topic,
            frame,
            hub.loop.time(),
            gather=bool(flags & GATHER),
            each=each_ms / 1000,
            limit=limit_ms / 1000,
            scope=scope_of(flags),
            far=session is not None and session.node,
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
    """Behind a link there is somebody who shares in a service."""
    _, conn, service, topic, flags = event
    hub.services.join(conn, service, topic, flags)


def ask(hub: "Hub", event: tuple[Any, ...]) -> None:
    """Another node asks whether somebody here would take a request."""
    _, conn, number, topic, frame = event
    hub.services.do(hub.services.asking.ask(conn, number, topic, frame, hub.loop.time()))
