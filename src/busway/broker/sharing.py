"""Requests on shared services on their way: from the engine's events to `asking`, and what that wants done back to the engine."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from busway.broker.asking import Asking
from busway.broker.attempts import Action, Answer, Ask
from busway.broker.flags import ASKS, GATHER
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class Sharing:
    """The shared services of one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.asking = Asking(each=hub.settings.provider_timeout, size=hub.settings.outbox)

    def join(self, conn: int, service: int, topic: str, flags: int) -> None:
        """The engine let a client share in a service."""
        session = self._hub.sessions.get(conn)
        if session is None:
            return
        name = session.name or f"{session.session:016x}"
        self.asking.providers.join(conn, service, topic.removeprefix("/"), name, asks=bool(flags & ASKS))

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
        while waiting:
            action = waiting.popleft()
            if isinstance(action, Answer):
                engine.answer(*action)
            elif not (engine.ask if isinstance(action, Ask) else engine.call)(*action):
                waiting.extend(self.asking.undeliverable(action.call, self._hub.loop.time()))
        self._hub.pulse.arm()


# What the hub's table calls.


def request(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, number, flags, topic, each_ms, limit_ms, frame = event
    sharing = hub.sharing
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
        )
    )


def cancel(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, number = event
    hub.sharing.asking.cancel(conn, number, hub.loop.time())


def accept(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, call, code = event
    hub.sharing.do(hub.sharing.asking.accepted(conn, call, hub.loop.time(), willing=code == Code.OK))


def answer(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, call, flags, code, fields, payload = event
    hub.sharing.do(hub.sharing.asking.answered(conn, call, flags, code, fields, payload, hub.loop.time()))


def unserve(hub: "Hub", event: tuple[Any, ...]) -> None:
    _, conn, service, _ = event
    hub.sharing.do(hub.sharing.asking.leave(conn, service, hub.loop.time()))
