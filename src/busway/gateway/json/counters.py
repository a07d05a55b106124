"""Counters of the JSON door, which it reports as figures and as metrics. Values only."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts since the door was opened."""

    requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Requests by command."""
    refusals: dict[int, int] = field(default_factory=dict)
    """Refused requests by status."""
    delivered: int = 0
    """Messages delivered to clients."""
    slow: int = 0
    """Clients that the door closed because they read nothing."""

    def requested(self, cmd: str) -> None:
        """Count a request."""
        self.requests[cmd] += 1

    def refused(self, status: int) -> None:
        """Count a refused request."""
        self.refusals[status] = self.refusals.get(status, 0) + 1
