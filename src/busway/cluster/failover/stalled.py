"""Reports messages that wait in a replica because its node is lost and no node may deliver from its channels.

`ownership` tells it which replicas are idle, and why.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from busway.cluster.failover.standby import Standby

STARTED: Final = "this node was started again, or lost that one before most others did, so it may lack acknowledgements"
DISPUTED: Final = (
    "this node delivered them until it was stopped or isolated,"
    " and too few nodes are linked to confirm that no other one has since"
)
_ADVICE: Final = "they are delivered when node {short} is back; if it never comes back: busway cluster --take {short}"


class StalledChannels:
    """The idle replicas of one broker."""

    def __init__(self, heir: Standby, tell: Callable[[str, str], object], after: float) -> None:
        self._heir = heir
        self._tell = tell
        self._after = after
        """Seconds until it is told, for a node may only be started again."""
        self._since: dict[str, float] = {}
        self._left: dict[str, dict[str, int]] = {}
        """Messages by node and stream, as soon as they are known: a journal that is being written shows them later."""
        self._told: set[str] = set()
        self._why: Mapping[str, str] = {}

    def look(self, now: float, idle: Mapping[str, str]) -> None:
        """These nodes are gone and nobody hands out for them, and why this one does not."""
        self._why = idle
        for guid in self._since.keys() - idle.keys():
            del self._since[guid]
            self._left.pop(guid, None)
            self._told.discard(guid)
        for guid in idle:
            since = self._since.setdefault(guid, now)
            if guid not in self._left and now >= since + self._after:
                self._left[guid] = self._heir.left(guid)
            if self._left.get(guid) and guid not in self._told:
                self._told.add(guid)
                self._tell(guid, self._text(guid))

    def why(self, guid: str, stream: str) -> str | None:
        """Why nothing of that part is handed out, if something is to be."""
        return self._text(guid) if self._left.get(guid, {}).get(stream) else None

    def figures(self) -> list[dict[str, Any]]:
        return [
            {"guid": guid, "messages": sum(left.values()), "streams": left, "why": self._why[guid]}
            for guid, left in self._left.items()
            if left
        ]

    def _text(self, guid: str) -> str:
        left, short, count = self._left[guid], guid[:8], sum(self._left[guid].values())
        return (
            f"{count} message{'s' * (count != 1)} of {', '.join(left)} wait in the replica of lost node {short}:"
            f" {self._why[guid]}; {_ADVICE.format(short=short)}"
        )
