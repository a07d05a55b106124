"""Guard of the JSON door: checks the signature of each request and the grants of its key. Values and a counter.

Commands, calls and events ask it. A door without keys allows every request.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from busway.gateway.auth.grants import Key, Verb
from busway.gateway.json.envelope import Request
from busway.gateway.json.statuses import FORBIDDEN, Refused

_VERBS: Final[dict[str, tuple[Verb, ...]]] = {
    "publish": ("publish",),
    "subscribe": ("subscribe",),
    "serve": ("serve",),
    "request": ("request",),
    "manage": ("publish", "serve"),
    "look": ("publish", "subscribe", "serve"),
}
"""For each action the verbs of which the key needs one."""


class Keys(Protocol):
    """The keys of a door."""

    def check(self, request: Mapping[str, Any], now: float, *, raw: bytes | str | None = None) -> Key:
        """The key that signed a request. Raises Refused."""


class Guard:
    """Checks requests against the keys of the door, and counts refusals."""

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self.active = keys is not None
        self.refused = 0

    def check(self, request: Request) -> None:
        """Store the key that signed a request in it. Raises Refused."""
        request.key = self.signed(request.raw, request.source)

    def signed(self, request: Mapping[str, Any], source: bytes | str | None = None) -> Key:
        """The key that signed a request; `source` is its JSON text as received. Raises Refused."""
        assert self._keys is not None
        try:
            return self._keys.check(request, time.time(), raw=source)
        except Refused:
            self.refused += 1
            raise

    def may(self, request: Request, action: str, topic: str) -> bool:
        """Whether the key of a request allows an action on a topic."""
        return not self.active or _granted(request.key, action, topic)

    def allow(self, request: Request, action: str, topic: str) -> None:
        """Raise Refused unless the key of a request allows an action on a topic."""
        if self.active:
            self.demand(request.key, action, topic)

    def demand(self, key: Key, action: str, topic: str) -> None:
        """Raise Refused unless a key allows an action on a topic."""
        if not _granted(key, action, topic):
            raise self.refusal(action, topic)

    def refusal(self, action: str, topic: str) -> Refused:
        """Count a refusal, and return the error to raise."""
        self.refused += 1
        return Refused(FORBIDDEN, f"apiKey may not {' or '.join(_VERBS[action])} {topic}")


def _granted(key: Key, action: str, topic: str) -> bool:
    return any(key.may(verb, topic) for verb in _VERBS[action])
