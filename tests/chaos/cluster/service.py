"""How long each client was without service during a fault. A machine: the caller reports when a client was served."""

from statistics import median
from typing import NamedTuple


class Outage(NamedTuple):
    """The longest time in which a client got nothing done, around one fault."""

    fault: str
    role: str
    struck: bool
    """It was connected to the node that the fault was about."""
    seconds: float


class Service:
    """The clients of a trial, and the fault that is under way."""

    def __init__(self) -> None:
        self.outages: list[Outage] = []
        self._last: dict[str, float] = {}
        self._longest: dict[str, float] = {}

    def done(self, client: str, when: float) -> None:
        """It has stored or got a message."""
        before = self._last.get(client, when)
        self._longest[client] = max(self._longest.get(client, 0.0), when - before)
        self._last[client] = max(when, before)

    def last(self, client: str) -> float:
        return self._last.get(client, 0.0)

    def begin(self) -> None:
        """Something goes wrong now."""
        self._longest.clear()

    def end(self, fault: str, roles: dict[str, str], struck: set[str], now: float) -> list[Outage]:
        """All is well again; what it was like for each client."""
        found = []
        for client, role in roles.items():
            # One that has not come back by now has waited until now at least.
            seconds = max(self._longest.get(client, 0.0), now - self._last.get(client, now))
            found.append(Outage(fault, role, client in struck, seconds))
        self.outages += found
        return found


def summary(outages: list[Outage]) -> list[str]:
    """A line for each kind of fault and client."""
    lines = []
    for key in sorted({(one.fault, one.role, not one.struck) for one in outages}):
        fault, role, elsewhere = key
        seconds = [one.seconds for one in outages if (one.fault, one.role, not one.struck) == key]
        where = "elsewhere" if elsewhere else "at the node"
        lines.append(
            f"{fault:<22} {role:<10} {where:<12} n={len(seconds):<4} min {min(seconds):6.2f} s  "
            f"median {median(seconds):6.2f} s  max {max(seconds):6.2f} s"
        )
    return lines
