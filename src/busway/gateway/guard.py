"""Who may do what: asks the keys of the door about a request and about what it is for. A door without keys lets everybody do everything."""

import time
from typing import Any, Protocol

from busway.gateway.envelope import Request
from busway.gateway.statuses import FORBIDDEN, Refused


class Key(Protocol):
    """What one key allows."""

    def may(self, verb: str, topic: str) -> bool:
        """Whether its holder may `publish`, `subscribe`, `serve` or `request` on a topic."""


class Keys(Protocol):
    """All keys of a door."""

    def check(self, request: dict[str, Any], now: float) -> Key:
        """The key that a request is signed with; raises with `status` and `text`."""


class Guard:
    """Asks the keys, if there are any."""

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self.wanted = keys is not None
        self.refused = 0

    def check(self, request: Request) -> None:
        """Refuse a request that is not signed as it should be; else remember by whom it is."""
        assert self._keys is not None
        try:
            request.key = self._keys.check(request.raw, time.time())
        except Exception as error:
            if not hasattr(error, "status"):
                raise
            self.refused += 1
            raise Refused(error.status, getattr(error, "text", str(error))) from None

    def allow(self, request: Request, verb: str, topic: str) -> None:
        """Refuse what the key of a request does not allow."""
        if not self.wanted:
            return
        may = request.key.may
        verbs = {"manage": ("publish", "serve"), "look": ("publish", "subscribe", "serve")}.get(verb, (verb,))
        if not any(may(one, topic) for one in verbs):
            self.refused += 1
            raise Refused(FORBIDDEN, f"this apiKey may not {verbs[0]} on {topic}")
