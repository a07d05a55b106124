"""Who uses a console session, and what that user may do. Values only.

With users the session's own client of the bus logs in as one, and the broker refuses what that user may not do. On a
door with keys and no users the session may do what the grants of its key allow; a service of the broker needs the grant
`request` on its topic, such as `$bus/channel/seek`. Without both it may do everything.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from busway.broker.access.authority import Authority
from busway.client.bus import ClientOptions
from busway.gateway.auth.grants import VERBS, Key
from busway.gateway.auth.guard import Guard
from busway.gateway.json.statuses import BAD, UNAUTHORIZED, Refused

NAME: Final = "console"
"""The name of the clients of all sessions."""
Login: TypeAlias = Literal["none", "user", "key"]
"""How a session logs in."""


class Rights:
    """The rights of one session, before and after its login."""

    def __init__(self, guard: Guard, authority: Authority) -> None:
        self._guard = guard
        self._authority = authority
        self._key: Key | None = None
        self._user = ""

    @property
    def login(self) -> Login:
        """How the user has to log in."""
        if self._authority.policy is not None:
            return "user"
        return "key" if self._guard.active else "none"

    @staticmethod
    def options() -> ClientOptions:
        """The options of a session's client without a login."""
        return {"name": NAME}

    def check(self, request: Mapping[str, Any], source: str) -> ClientOptions:
        """The options of the session's client after a login. Raises Refused for a wrong key.

        The client itself proves the password or token of a user.
        """
        if self.login != "user":
            self._key = self._guard.signed(request, source) if self._guard.active else None
            return self.options()
        # Without credentials a client in the broker's own process would have all rights.
        user, password, token = (_text(request, name) for name in ("user", "password", "token"))
        if token:
            return {**self.options(), "token": token}
        if not user or not password:
            raise Refused(BAD, "a login needs a user and a password, or a token")
        self._user = user
        return {**self.options(), "user": user, "password": password}

    def demand(self, action: str, topic: str) -> None:
        """Raise Refused unless the key of the session allows this on a topic or pattern. The broker checks users."""
        if self.login == "key":
            if self._key is None:
                raise Refused(UNAUTHORIZED, "log in first: this door has keys")
            self._guard.demand(self._key, action, topic)

    def shown(self) -> dict[str, Any]:
        """The user with its grants, as lines of text."""
        policy = self._authority.policy
        allow: list[str] = []
        deny: list[str] = []
        if policy is not None and self._user:
            for part in policy.parts(self._user):
                where = f" (role {part.name})" if part.name else ""
                allow += [f"{grant}{where}" for grant in part.allow]
                deny += [f"{grant}{where}" for grant in part.deny]
        elif (key := self._key) is not None:
            allow = [f"{verb} {pattern}" for verb in VERBS for pattern in getattr(key, verb)]
        name = self._user or (self._key.name or self._key.api_key if self._key is not None else None)
        return {"user": name, "everything": self.login == "none", "allow": allow, "deny": deny}


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name, "")
    if not isinstance(value, str):
        raise Refused(BAD, f"{name} must be a text")
    return value
