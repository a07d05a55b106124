"""The users file: reads TOML into a policy, and names the line of an error.

::

    [roles.trader]
    allow = ["publish,subscribe orders/**", "all desk/{user}/**"]
    deny = ["publish orders/closed/**"]

    [users.alice]
    roles = ["trader"]
    password = "argon2id$..."           # busway user password alice
    keys = ["MCowBQ..."]                # public Ed25519 keys: busway user key alice
    certificates = ["CN=alice", "DNS:alice.example"]
    uids = [1000]                       # users of this host, at Unix sockets

    [tokens]                            # JWT
    jwks = "jwks.json"
    audience = "busway"
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from busway.authority.grants import Grant
from busway.authority.keys import check_public
from busway.authority.passwords import Verifier
from busway.authority.policy import Policy, Role, User, check_user
from busway.authority.tokens import TokenSettings

LONGEST: Final = 16 << 20
"""Bytes of a users file."""
GRANTS: Final = 100_000
"""Most grants of a users file."""

_T = TypeVar("_T")
_CERTIFICATES: Final = ("CN=", "DNS:", "URI:", "email:", "IP Address:")
_HEADER: Final = re.compile(r"\s*\[.*\]\s*(#.*)?")
_Texts = tuple[str, ...]


class UsersError(ValueError):
    """A users file is invalid. The text names the file, the line and the error."""


class _Role(msgspec.Struct, forbid_unknown_fields=True):
    allow: _Texts = ()
    deny: _Texts = ()


class _User(_Role, forbid_unknown_fields=True):
    roles: _Texts = ()
    password: str | None = None
    keys: _Texts = ()
    certificates: _Texts = ()
    uids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...] = ()


class _Tokens(msgspec.Struct, forbid_unknown_fields=True):
    jwks: str
    audience: str
    issuer: str | None = None
    user: str = "sub"
    roles: str = "roles"
    leeway: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, dict[str, Any]] = {}
    roles: dict[str, dict[str, Any]] = {}
    tokens: dict[str, Any] | None = None


def read_users(path: str | Path) -> Policy:
    """The policy in a file. Raises UsersError."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise UsersError(f"{path} can't be read: {error.strerror}") from error
    return parse_users(data, path)


def parse_users(data: bytes, path: Path) -> Policy:
    """The policy in the bytes of a file. Raises UsersError."""
    if len(data) > LONGEST:
        raise UsersError(f"{path} has more than {LONGEST} bytes")
    try:
        text = data.decode()
        content = msgspec.convert(tomllib.loads(text), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise UsersError(f"{path}: {error}") from error
    return _Reader(path, text).policy(content)


class _Reader:
    """Converts one file, and finds the lines of its errors."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._grants = 0

    def policy(self, content: _File) -> Policy:
        roles = {name: self._role(name, table) for name, table in content.roles.items()}
        users = {name: self._user(name, table, roles) for name, table in content.users.items()}
        for table, names in (("users", users), ("roles", roles)):
            self._check_alike(table, names)
        self._check_unique(users)
        return Policy(users.values(), roles.values(), self._tokens(content.tokens))

    def _role(self, name: str, table: dict[str, Any]) -> Role:
        at = "roles", name
        self._checked(check_user, name, at)
        found = self._converted(table, _Role, at)
        return Role(name, self._listed(found.allow, at, "allow"), self._listed(found.deny, at, "deny"))

    def _user(self, name: str, table: dict[str, Any], roles: Mapping[str, Role]) -> User:
        at = "users", name
        self._checked(check_user, name, at)
        found = self._converted(table, _User, at)
        for role in found.roles:
            if role not in roles:
                raise self._error(at, "roles", role, f"there is no role {role!r}")
        if found.password is not None:
            self._checked(Verifier.parse, found.password, at, "password", show=False)
        for key in found.keys:
            self._checked(check_public, key, at, "keys")
        for certificate in found.certificates:
            self._checked(_check_certificate, certificate, at, "certificates")
        return User(
            name,
            found.roles,
            self._listed(found.allow, at, "allow"),
            self._listed(found.deny, at, "deny"),
            found.password,
            found.keys,
            found.certificates,
            found.uids,
        )

    def _listed(self, texts: _Texts, at: tuple[str, str], key: str) -> tuple[Grant, ...]:
        self._grants += len(texts)
        if self._grants > GRANTS:
            raise self._error(at, key, None, f"the file has more than {GRANTS} grants")
        return tuple(self._checked(Grant.parse, text, at, key) for text in texts)

    def _tokens(self, table: dict[str, Any] | None) -> TokenSettings | None:
        if table is None:
            return None
        found = self._converted(table, _Tokens, ("tokens",))
        jwks = self._path.parent / found.jwks
        return TokenSettings(jwks, found.audience, found.issuer, found.user, found.roles, found.leeway)

    def _check_alike(self, table: str, names: Mapping[str, object]) -> None:
        """Refuse two names that differ only in upper and lower case."""
        seen: dict[str, str] = {}
        for name in names:
            if (other := seen.setdefault(name.lower(), name)) != name:
                raise self._error((table, name), None, None, f"the name looks like {other!r}; choose another one")

    def _check_unique(self, users: Mapping[str, User]) -> None:
        """Refuse proofs that belong to two users."""
        for key in ("uids", "certificates", "keys"):
            owners: dict[object, str] = {}
            for user in users.values():
                for proof in getattr(user, key):
                    if (other := owners.setdefault(proof, user.name)) != user.name:
                        at = "users", user.name
                        raise self._error(at, key, proof, f"{proof!r} belongs to {other} already")

    def _converted(self, table: dict[str, Any], kind: type[_T], at: tuple[str, ...]) -> _T:
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            found = re.search(r"`(\w+)`$|\$\.(\w+)", str(error))
            named = "" if found is None else found[1] or found[2]
            raise self._error(at, named if named in table else None, None, str(error)) from error

    def _checked(
        self, check: Callable[[str], _T], text: str, at: tuple[str, ...], key: str | None = None, *, show: bool = True
    ) -> _T:
        try:
            return check(text)
        except ValueError as error:
            raise self._error(at, key, text if show else None, str(error)) from error

    def _error(self, at: tuple[str, ...], key: str | None, value: object, reason: str) -> UsersError:
        line = line_of(self._text, at, key, value)
        where = f"{self._path}, line {line}" if line else f"{self._path}"
        return UsersError(f"{where}: [{'.'.join(at)}]{f' {key}' if key else ''}: {reason}")


def line_of(text: str, table: tuple[str, ...], key: str | None, value: object) -> int:
    """The line of a value in a TOML text, else that of its key or table. 0: it was not found."""
    found, inside, keyed = 0, False, key is None
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.fullmatch(line):
            if inside:
                break
            inside = _names(line) == table
            found = number if inside else found
        elif inside and not keyed and re.match(rf"""\s*["']?{re.escape(key or "")}["']?\s*=""", line):
            keyed, found = True, number
        if inside and keyed and value is not None and _contains(line, value):
            return number
    return found


def _names(header: str) -> tuple[str, ...]:
    """The path of a table in its header; empty for other lines."""
    try:
        found: Any = tomllib.loads(header)
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(found, dict) and len(found) == 1:
        name, found = next(iter(found.items()))
        names.append(name)
    return tuple(names)


def _contains(line: str, value: object) -> bool:
    return f'"{value}"' in line or f"'{value}'" in line or (isinstance(value, int) and str(value) in line)


def _check_certificate(name: str) -> None:
    if not any(name.startswith(kind) and name != kind for kind in _CERTIFICATES):
        raise ValueError(f'{name!r} is no name in a certificate; write "CN=name", or "DNS:name", "URI:…", "email:…"')
