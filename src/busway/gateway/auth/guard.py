"""Guard of the JSON door: checks who sends each request, and what the key or the user may do. Values and a counter.

Commands, calls and events ask it. A door without keys and users allows every request.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from busway.gateway.auth.grants import ACTIONS, Key
from busway.gateway.json.envelope import Request
from busway.gateway.json.statuses import FORBIDDEN, UNAUTHORIZED, Refused


class Caller(Protocol):
    """Who sends a request: a key, or a user."""

    def allows(self, action: str, topic: str) -> bool:
        """Whether the caller may carry out an action of the JSON protocol on a topic."""


class Keys(Protocol):
    """The keys of a door."""

    def check(self, request: Mapping[str, Any], now: float, *, raw: bytes | str | None = None) -> Key:
        """The key that signed a request. Raises Refused."""


class Guard:
    """Checks requests against the keys of the door, and counts refusals."""

    def __init__(self, keys: Keys | None, users: bool = False) -> None:  # noqa: FBT001, FBT002
        self._keys = keys
        self.active = keys is not None or users
        self.refused = 0

    def check(self, request: Request, user: Caller | None = None) -> None:
        """Store who sends a request in it: the user that has logged in, or the key that signed it. Raises Refused."""
        request.key = user if user is not None else self.signed(request.raw, request.source)

    def signed(self, request: Mapping[str, Any], source: bytes | str | None = None) -> Key:
        """The key that signed a request; `source` is its JSON text as received. Raises Refused."""
        if self._keys is None:
            self.refused += 1
            raise Refused(UNAUTHORIZED, "log in with the header Authorization")
        try:
            return self._keys.check(request, time.time(), raw=source)
        except Refused:
            self.refused += 1
            raise

    def may(self, request: Request, action: str, topic: str) -> bool:
        """Whether the key of a request allows an action on a topic."""
        return not self.active or request.key.allows(action, topic)

    def allow(self, request: Request, action: str, topic: str) -> None:
        """Raise Refused unless the key of a request allows an action on a topic."""
        if self.active:
            self.demand(request.key, action, topic)

    def demand(self, caller: Caller, action: str, topic: str) -> None:
        """Raise Refused unless a key or a user allows an action on a topic."""
        if not caller.allows(action, topic):
            raise self.refusal(action, topic)

    def refusal(self, action: str, topic: str) -> Refused:
        """Count a refusal, and return the error to raise."""
        self.refused += 1
        return Refused(
            FORBIDDEN,
            f"{'apiKey' if self._keys is not None else 'user'} may not {' or '.join(ACTIONS[action])} {topic}",
        )
