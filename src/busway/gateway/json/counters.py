"""What the JSON door counts. Values only."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Since the door was opened."""

    requests: dict[str, int] = field(default_factory=dict)
    """By command."""
    refusals: dict[int, int] = field(default_factory=dict)
    """By status."""
    quick: int = 0
    """Of the command `pub`, besides those."""
    delivered: int = 0
    slow: int = 0
    """Clients that were closed since they took nothing."""

    def asked(self, cmd: str) -> None:
        self.requests[cmd] = self.requests.get(cmd, 0) + 1

    def refused(self, status: int) -> None:
        self.refusals[status] = self.refusals.get(status, 0) + 1
