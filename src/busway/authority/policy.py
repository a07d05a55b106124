"""Users with their roles, and the decision whether a user may do something. Values; the engine compares the patterns.

`users_file` makes a policy, `busway.broker.access` keeps the current one, and all doors ask it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from busway._core import Grants, GrantSet
from busway.authority.grants import NUMBERS, Grant, Verb
from busway.authority.tokens import TokenSettings

ANONYMOUS: Final = "anonymous"
"""The user of clients that do not log in. They are refused if it is not in the users file."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+|-]{0,127}")


def check_user(name: str) -> str:
    """The name of a user. Raises ValueError.

    A name consists of ASCII characters, so that none looks like another one, and it is one segment of a topic.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't be the name of a user or role: use 1 to 128 letters and digits of ASCII, and . _ @ + | -"
        )
    return name


@dataclass(frozen=True, slots=True)
class Role:
    """Grants with a name."""

    name: str
    allow: tuple[Grant, ...] = ()
    deny: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    """A user: how it proves who it is, and what it may do."""

    name: str
    roles: tuple[str, ...] = ()
    allow: tuple[Grant, ...] = ()
    deny: tuple[Grant, ...] = ()
    password: str | None = field(default=None, repr=False)
    """The verifier of the password, see `passwords`."""
    keys: tuple[str, ...] = ()
    """Public Ed25519 keys in base64."""
    certificates: tuple[str, ...] = ()
    """Names in certificates: `CN=…`, or alternative names such as `DNS:…` and `URI:…`."""
    uids: tuple[int, ...] = ()
    """Users of the operating system, at a Unix socket and the file door."""

    @property
    def proofs(self) -> tuple[object, ...]:
        """By what the user logs in. A session ends when this changes."""
        return self.password, self.keys, self.certificates, self.uids


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a user may do something, and the reason."""

    allowed: bool
    reason: str


class Policy:
    """All users and roles. It does not change."""

    def __init__(
        self, users: Iterable[User] = (), roles: Iterable[Role] = (), tokens: TokenSettings | None = None
    ) -> None:
        self.users: Mapping[str, User] = {user.name: user for user in users}
        self.roles: Mapping[str, Role] = {role.name: role for role in roles}
        self.tokens = tokens
        self.by_uid = {uid: user.name for user in self.users.values() for uid in user.uids}
        self.by_certificate = {name: user.name for user in self.users.values() for name in user.certificates}
        self._sets: dict[str, GrantSet] = {}
        """The compiled grants of roles that do not depend on the user's name."""
        self._grants: dict[tuple[str, tuple[str, ...]], Grants] = {}

    def parts(self, name: str, roles: Iterable[str] = ()) -> list[Role]:
        """The grants of a user: its own as a role without a name, then its roles and more `roles`."""
        user = self.users.get(name, User(name))
        named = dict.fromkeys((*user.roles, *roles))
        return [Role("", user.allow, user.deny), *(self.roles[role] for role in named if role in self.roles)]

    def grants(self, name: str, roles: tuple[str, ...] = ()) -> Grants:
        """The compiled grants of a user. `roles` are those of its token, besides those in the users file."""
        key = name, roles
        if (grants := self._grants.get(key)) is None:
            grants = Grants([self._compiled(part, name) for part in self.parts(name, roles)])
            if name in self.users:  # names in tokens have no limit
                self._grants[key] = grants
        return grants

    def _compiled(self, role: Role, user: str) -> GrantSet:
        shared = bool(role.name) and not any(grant.names_user for grant in (*role.allow, *role.deny))
        if shared and (known := self._sets.get(role.name)) is not None:
            return known
        sides = [[(grant.bits, grant.of(user)) for grant in side] for side in (role.allow, role.deny)]
        compiled = GrantSet(*sides)
        if shared:
            self._sets[role.name] = compiled
        return compiled

    def decide(self, name: str, verb: Verb, topic: str, roles: tuple[str, ...] = ()) -> Decision:
        """Whether a user may use a verb on a topic or pattern, with the grant that decides."""
        outcome, at, number = self.grants(name, roles).decide(NUMBERS[verb], topic)
        if outcome == "missing":
            return Decision(False, "no grant covers it")
        if outcome == "complex":
            return Decision(False, "the pattern is too complex to decide; use fewer wildcards")
        if outcome == "filtered":
            return Decision(True, "only for messages whose topic a grant allows, since an expression can't be decided")
        part = self.parts(name, roles)[at]
        grant = (*part.allow, *part.deny)[number]
        side = "allowed" if outcome == "allowed" else "denied"
        where = f"of role {part.name}" if part.name else "of the user"
        return Decision(outcome == "allowed", f"{side} by {str(grant)!r} {where}")

    def narrowed(self, later: "Policy", name: str, roles: tuple[str, ...] = ()) -> bool:
        """Whether a later policy takes something away from a user that is in both."""
        allow, deny = _plain(self.parts(name, roles))
        later_allow, later_deny = _plain(later.parts(name, roles))
        return not (allow <= later_allow and later_deny <= deny)


def _plain(parts: Iterable[Role]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """All allowed and all denied pairs of verb and pattern."""
    parts = list(parts)
    allow = {(verb, grant.pattern) for part in parts for grant in part.allow for verb in grant.verbs}
    deny = {(verb, grant.pattern) for part in parts for grant in part.deny for verb in grant.verbs}
    return allow, deny
