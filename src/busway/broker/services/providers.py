"""Who shares a service: how busy each one is, and which ones are set aside because they fail.

A machine for `asking`, without a clock. The least busy one comes first. After three failures in a row a provider is set
aside for ten seconds, then one request tries it again. Those behind a link count as one: their node chooses among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from busway.settings import Scope

FAILURES: Final = 3
ASIDE: Final = 10.0


@dataclass(slots=True, eq=False)
class Provider:
    """One client's share in a service, or that of all clients of another node."""

    conn: int
    service: int
    topic: str
    name: str
    asks: bool
    busy: float
    """Seconds of work, counted from those of the least busy one when it came."""
    worked: float = 0.0
    calls: int = 0
    running: int = 0
    started: float = 0.0
    failures: int = 0
    aside: float = 0.0
    trial: int = 0
    """The attempt that shows whether it works again, while one is under way."""
    gone: bool = False
    attempts: set[int] = field(default_factory=set)
    far: bool = False
    """It is another node, which asks and calls its own clients."""
    scope: Scope = "global"
    """Whose requests it wants."""
    entries: dict[int, bool] = field(default_factory=dict)
    """Of another node: how it names the service, and whether who serves it there wants to be asked first."""

    def load(self, now: float) -> tuple[float, int]:
        """How busy it is. What is under way counts as long as it takes, and at least as long as its work took until now."""
        mean = self.worked / self.calls if self.calls else 0.0
        return self.busy + max(self.running * now - self.started, self.running * mean), self.running

    def free(self, now: float) -> bool:
        """Whether it may be tried."""
        return not self.gone and (self.failures < FAILURES or (now >= self.aside and not self.trial))

    def tried(self, attempt: int) -> None:
        self.attempts.add(attempt)
        if self.failures >= FAILURES:
            self.trial = attempt

    def begins(self, now: float) -> None:
        self.running += 1
        self.started += now

    def ends(self, began: float, now: float) -> None:
        self.running -= 1
        self.started = self.started - began if self.running else 0.0  # no rest of roundings
        self.busy += now - began
        self.worked += now - began
        self.calls += 1

    def over(self, attempt: int, now: float, *, good: bool | None) -> None:
        """An attempt has ended, well, badly, or without telling anything about the provider."""
        self.attempts.discard(attempt)
        if self.trial == attempt:
            self.trial = 0
        if good:
            self.failures = 0
        elif good is False:
            self.failures += 1
            if self.failures >= FAILURES:
                self.aside = now + ASIDE

    def state(self, now: float) -> str:
        if self.failures < FAILURES:
            return "willing"
        return "trial" if self.trial else "aside" if now < self.aside else "due"


class Providers:
    """All of them, by topic and by connection."""

    def __init__(self) -> None:
        self._topics: dict[str, list[Provider]] = {}
        self._conns: dict[int, dict[Provider, None]] = {}
        self._named: dict[tuple[int, int], Provider] = {}
        """Those that have not left, by their connection and what that calls the service."""
        self._nodes: dict[tuple[int, str], Provider] = {}
        """Other nodes, by connection and topic."""

    def join(self, conn: int, service: int, topic: str, name: str, *, asks: bool, scope: Scope = "global") -> Provider:
        return self._add(Provider(conn, service, topic, name, asks, 0.0, scope=scope))

    def join_far(self, conn: int, service: int, topic: str, name: str, *, asks: bool) -> Provider:
        """Another node has clients that share in the service; those that are asked first and those that are not, it tells apart."""
        provider = self._nodes.get((conn, topic))
        if provider is None:
            provider = self._add(Provider(conn, service, topic, name, asks, 0.0, far=True))
            self._nodes[conn, topic] = provider
        self._named[conn, service] = provider
        provider.entries[service] = asks
        provider.asks = all(provider.entries.values())
        return provider

    def leave(self, conn: int, service: int) -> Provider | None:
        """It takes no more; what it has under way it may finish."""
        provider = self._named.pop((conn, service), None)
        if provider is None:
            return None
        if provider.far:
            del provider.entries[service]
            if provider.entries:
                provider.service = next(iter(provider.entries))
                provider.asks = all(provider.entries.values())
                return None
        self._drop(provider)
        self.tidy(provider)
        return provider

    def gone(self, conn: int) -> list[Provider]:
        """Those of a connection that ended, also the ones that had left and were still at work."""
        lost = list(self._conns.pop(conn, ()))
        for provider in lost:
            if not provider.gone:
                for service in provider.entries or (provider.service,):
                    del self._named[conn, service]
                self._drop(provider)
        return lost

    def tidy(self, provider: Provider) -> None:
        """Forget one that has left and has nothing under way any more."""
        if provider.gone and not provider.attempts and provider in (rest := self._conns.get(provider.conn, {})):
            del rest[provider]
            if not rest:
                del self._conns[provider.conn]

    def of(self, topic: str) -> list[Provider]:
        return self._topics.get(topic, [])

    def figures(self, now: float) -> Iterator[dict[str, Any]]:
        for topic, providers in self._topics.items():
            for one in providers:
                yield {
                    "topic": topic,
                    "provider": one.name,
                    "asks": one.asks,
                    "far": one.far,
                    "busy": round(one.load(now)[0], 6),
                    "running": one.running,
                    "calls": one.calls,
                    "failures": one.failures,
                    "state": one.state(now),
                }

    def _add(self, provider: Provider) -> Provider:
        others = self._topics.setdefault(provider.topic, [])
        # A new one would get every request until it has worked as long as the others did in all their life.
        provider.busy = min((one.busy for one in others), default=0.0)
        others.append(provider)
        self._conns.setdefault(provider.conn, {})[provider] = None
        self._named[provider.conn, provider.service] = provider
        return provider

    def _drop(self, provider: Provider) -> None:
        provider.gone = True
        if provider.far:
            del self._nodes[provider.conn, provider.topic]
        others = self._topics[provider.topic]
        others.remove(provider)
        if not others:
            del self._topics[provider.topic]
