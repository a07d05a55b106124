"""The providers of shared services: the load and the health of each.

This is a machine without a clock, used by `services.requests`. The least busy provider comes first. After three
failures in a row a provider is set aside for ten seconds; then one request retries it. All providers of another node
count as one, because that node chooses among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from busway.settings import Scope

FAILURES: Final = 3
"""The number of failures in a row after which a provider is set aside."""
ASIDE: Final = 10.0
"""Seconds for which a provider is set aside."""


@dataclass(slots=True, eq=False)
class Provider:
    """A client that shares a service, or all such clients of another node."""

    conn: int
    service: int
    topic: str
    name: str
    asks: bool
    busy: float
    """Seconds of work, beginning with those of the least busy provider when this one joined."""
    worked: float = 0.0
    calls: int = 0
    running: int = 0
    started: float = 0.0
    failures: int = 0
    aside: float = 0.0
    trial: int = 0
    """The attempt in flight that shows whether a provider that was set aside works again."""
    gone: bool = False
    attempts: set[int] = field(default_factory=set)
    remote: bool = False
    """Whether this is another node, which asks and calls its own clients."""
    scope: Scope = "global"
    """The requesters that the provider accepts: local, remote or all."""
    entries: dict[int, bool] = field(default_factory=dict)
    """Only of another node: its numbers of the service, and whether the providers there are asked first."""

    def load(self, now: float) -> tuple[float, int]:
        """The load: seconds of work and calls in flight. A call counts its time until now, at least the mean time."""
        mean = self.worked / self.calls if self.calls else 0.0
        return self.busy + max(self.running * now - self.started, self.running * mean), self.running

    def free(self, now: float) -> bool:
        """Whether the provider can get a request."""
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
        self.started = self.started - began if self.running else 0.0  # without rounding errors
        self.busy += now - began
        self.worked += now - began
        self.calls += 1

    def over(self, attempt: int, now: float, *, good: bool | None) -> None:
        """Count the end of an attempt: good, bad, or (None) without a conclusion about the provider."""
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
    """All providers, by topic and by connection."""

    def __init__(self) -> None:
        self._topics: dict[str, list[Provider]] = {}
        self._conns: dict[int, dict[Provider, None]] = {}
        self._named: dict[tuple[int, int], Provider] = {}
        """Providers that have not left, by connection and its number of the service."""
        self._nodes: dict[tuple[int, str], Provider] = {}
        """Providers that are other nodes, by connection and topic."""

    def join(self, conn: int, service: int, topic: str, name: str, *, asks: bool, scope: Scope = "global") -> Provider:
        return self._add(Provider(conn, service, topic, name, asks, 0.0, scope=scope))

    def join_remote(self, conn: int, service: int, topic: str, name: str, *, asks: bool) -> Provider:
        """Add clients of another node that share a service. Those that are asked first have their own number."""
        provider = self._nodes.get((conn, topic))
        if provider is None:
            provider = self._add(Provider(conn, service, topic, name, asks, 0.0, remote=True))
            self._nodes[conn, topic] = provider
        self._named[conn, service] = provider
        provider.entries[service] = asks
        provider.asks = all(provider.entries.values())
        return provider

    def leave(self, conn: int, service: int) -> Provider | None:
        """Remove a provider that accepts no more requests. It can finish those in flight."""
        provider = self._named.pop((conn, service), None)
        if provider is None:
            return None
        if provider.remote:
            del provider.entries[service]
            if provider.entries:
                provider.service = next(iter(provider.entries))
                provider.asks = all(provider.entries.values())
                return None
        self._drop(provider)
        self.tidy(provider)
        return provider

    def gone(self, conn: int) -> list[Provider]:
        """Remove the providers of a connection that has ended, also those that had left and were still at work."""
        lost = list(self._conns.pop(conn, ()))
        for provider in lost:
            if not provider.gone:
                for service in provider.entries or (provider.service,):
                    del self._named[conn, service]
                self._drop(provider)
        return lost

    def tidy(self, provider: Provider) -> None:
        """Forget a provider that has left and has no attempts in flight."""
        if provider.gone and not provider.attempts and provider in (rest := self._conns.get(provider.conn, {})):
            del rest[provider]
            if not rest:
                del self._conns[provider.conn]

    def of(self, topic: str) -> list[Provider]:
        return self._topics.get(topic, [])

    def figures(self, now: float) -> Iterator[dict[str, Any]]:
        for topic, providers in self._topics.items():
            for provider in providers:
                yield {
                    "topic": topic,
                    "provider": provider.name,
                    "asks": provider.asks,
                    "far": provider.remote,
                    "busy": round(provider.load(now)[0], 6),
                    "running": provider.running,
                    "calls": provider.calls,
                    "failures": provider.failures,
                    "state": provider.state(now),
                }

    def _add(self, provider: Provider) -> Provider:
        others = self._topics.setdefault(provider.topic, [])
        # Otherwise a new provider would get every request until its work equals the total work of the others.
        provider.busy = min((other.busy for other in others), default=0.0)
        others.append(provider)
        self._conns.setdefault(provider.conn, {})[provider] = None
        self._named[provider.conn, provider.service] = provider
        return provider

    def _drop(self, provider: Provider) -> None:
        provider.gone = True
        if provider.remote:
            del self._nodes[provider.conn, provider.topic]
        others = self._topics[provider.topic]
        others.remove(provider)
        if not others:
            del self._topics[provider.topic]
