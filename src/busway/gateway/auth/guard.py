"""Who may do what: asks the keys of the door about a request and about what it is for. A door without keys lets everybody do everything."""

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
"""What a key has to be granted for what is done: one of these."""


class Keys(Protocol):
    """All keys of a door."""

    def check(self, request: Mapping[str, Any], now: float, *, raw: bytes | str | None = None) -> Key:
        """The key that a request is signed with; raises Refused."""


class Guard:
    """Asks the keys, if there are any."""

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self.wanted = keys is not None
        self.refused = 0

    def check(self, request: Request) -> None:
        """Refuse a request that is not signed as it should be; else remember by whom it is."""
        request.key = self.signed(request.raw, request.source)

    def signed(self, request: Mapping[str, Any], source: bytes | str | None = None) -> Key:
        """Whose request this is; `source` is the text that it came as."""
        assert self._keys is not None
        try:
            return self._keys.check(request, time.time(), raw=source)
        except Refused:
            self.refused += 1
            raise

    def may(self, request: Request, what: str, topic: str) -> bool:
        """Whether the key of a request allows something."""
        return not self.wanted or _granted(request.key, what, topic)

    def allow(self, request: Request, what: str, topic: str) -> None:
        """Refuse what the key of a request does not allow."""
        if self.wanted:
            self.demand(request.key, what, topic)

    def demand(self, key: Key, what: str, topic: str) -> None:
        """Refuse what a key does not allow."""
        if not _granted(key, what, topic):
            raise self.refusal(what, topic)

    def refusal(self, what: str, topic: str) -> Refused:
        """To be raised; it is counted."""
        self.refused += 1
        return Refused(FORBIDDEN, f"apiKey may not {' or '.join(_VERBS[what])} {topic}")


def _granted(key: Key, what: str, topic: str) -> bool:
    return any(key.may(verb, topic) for verb in _VERBS[what])
