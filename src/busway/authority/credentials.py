"""Credentials of a client: who it is and how it proves that, from arguments, an address, the environment or files.

The lifecycle of a client calls it for each connection, so a changed file counts at the next one.
"""

from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypedDict, cast
from urllib.parse import unquote, urlsplit

import msgspec

from busway.authority import keys, passwords
from busway.authority.login import NONCE, Claim, CostMap, context
from busway.common import environment
from busway.common.checks import check_type
from busway.errors import Code, Forbidden, RemoteProtocolError

VARIABLES: Final = {
    "user": "BUSWAY_USER",
    "password": "BUSWAY_PASSWORD",
    "password_file": "BUSWAY_PASSWORD_FILE",
    "key_file": "BUSWAY_KEY_FILE",
    "token": "BUSWAY_TOKEN",
    "token_file": "BUSWAY_TOKEN_FILE",
}
_PROOFS: Final = tuple(VARIABLES)[1:]


class CredentialOptions(TypedDict, total=False):
    """The keyword arguments of connect() that tell who the client is."""

    user: str
    password: str | None
    password_file: str | PathLike[str] | None
    key_file: str | PathLike[str] | None
    token: str | None
    token_file: str | PathLike[str] | None


class ServerChallenge(msgspec.Struct, frozen=True):
    """The map of CHALLENGE."""

    nonce: bytes
    salt: bytes = b""
    memory: int = 0
    passes: int = 0
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and at most one proof: a password, the file of an Ed25519 key, or a token."""

    user: str = ""
    password: str | None = field(default=None, repr=False)
    password_file: str | PathLike[str] | None = None
    key_file: str | PathLike[str] | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_type("user", self.user, str, "a str")
        for name in ("password", "token"):  # the error must not contain the secret
            if not isinstance(getattr(self, name), (str, NoneType)):
                raise TypeError(f"{name} must be a str or None")
        for name in ("password_file", "key_file", "token_file"):
            check_type(name, getattr(self, name), (str, PathLike, NoneType), "the path of a file or None")
        given = [name for name in _PROOFS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a client has one proof of who it is, not {' and '.join(given)}")
        if given and not self.user and not given[0].startswith("token"):
            raise ValueError(f"{given[0]} needs the name of its user: give user, too")

    def __bool__(self) -> bool:
        return self != _NONE

    def login(self, session: int) -> "ClientLogin":
        """The login of one connection. Reads the files. Raises Forbidden if one can't be read."""
        if self.key_file is not None:
            return ClientLogin(Claim(self.user, "key", _nonce()), session, key_file=self.key_file)
        if (token := self._secret("token")) is not None:
            return ClientLogin(Claim(self.user, "token", token=token), session)
        if (password := self._secret("password")) is not None:
            return ClientLogin(Claim(self.user, "password", _nonce()), session, password=password)
        return ClientLogin(Claim(self.user), session)

    def _secret(self, name: str) -> str | None:
        path = getattr(self, f"{name}_file")
        if path is None:
            secret: str | None = getattr(self, name)
            return secret
        try:
            return Path(path).read_text("utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8"
            raise Forbidden(f"the {name} file {path} can't be read: {reason}") from error


_NONE: Final = Credentials()


class ClientLogin:
    """The login of one connection, as the client sees it."""

    def __init__(
        self,
        claim: Claim,
        session: int,
        *,
        password: str = "",
        key_file: str | PathLike[str] | None = None,
    ) -> None:
        self._session = session
        self._password = password
        self._key_file = key_file
        self._expected: bytes | None = None
        """The proof that the server has to give."""
        self._claim = claim

    @property
    def hello(self) -> dict[str, Any]:
        """The part of the map of HELLO."""
        claim = self._claim
        return {name: value for name, value in msgspec.structs.asdict(claim).items() if value not in (None, "", b"")}

    async def answer(self, packed: bytes, loop: AbstractEventLoop) -> bytes:
        """The map of LOGIN for that of a CHALLENGE. A thread computes it, because that takes tens of milliseconds."""
        return await loop.run_in_executor(None, self._answer, packed)

    def _answer(self, packed: bytes) -> bytes:
        try:
            challenge = msgspec.msgpack.decode(packed, type=ServerChallenge)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"CHALLENGE: {error}") from error
        about = context(self._claim, self._session, challenge.nonce)
        if len(challenge.nonce) != NONCE or self._claim.method not in ("password", "key"):
            raise RemoteProtocolError("the server sent a CHALLENGE that this client did not ask for")
        if self._claim.method == "key":
            assert self._key_file is not None
            try:
                private = keys.read_private(Path(self._key_file))
            except (OSError, ValueError) as error:
                raise Forbidden(f"the key file can't be used: {error}") from error
            proof = keys.sign(private, about)
        else:
            try:
                cost = CostMap(challenge.salt, challenge.memory, challenge.passes, challenge.lanes).cost
            except ValueError as error:
                raise RemoteProtocolError(f"CHALLENGE: {error}") from error
            proof, self._expected = passwords.prove(self._password, cost, about)
        return msgspec.msgpack.encode({"proof": proof})

    def check_server(self, proof: object) -> None:
        """Raise Forbidden unless the server proved that it knows the password, too."""
        if self._claim.method == "password" and (self._expected is None or proof != self._expected):
            raise Forbidden("the server did not prove that it knows this user", code=Code.UNAUTHORIZED)


def split_address(url: str) -> tuple[str, Credentials]:
    """An address without its user and password, and these: `tcp://alice:secret@host`."""
    check_type("an address", url, str, "a str such as tcp://HOST:PORT")
    if "@" not in url or not url.startswith(("tcp://", "tls://")):
        return url, _NONE
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        return url, _NONE
    bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return bare, Credentials(unquote(user or ""), None if password is None else unquote(password))


def split_addresses(urls: Sequence[str], login: Credentials) -> tuple[tuple[str, ...], Credentials]:
    """Addresses without users and passwords, and the credentials in them, or else `login`."""
    parts = [split_address(url) for url in urls]
    found = {credentials for _, credentials in parts if credentials}
    if len(found) > 1 or (found and login):
        raise ValueError("give user and password once: in all addresses the same, or as arguments")
    return tuple(bare for bare, _ in parts), next(iter(found), login)


def completed(options: CredentialOptions, environ: Mapping[str, str]) -> CredentialOptions:
    """Keyword arguments, completed by the variables BUSWAY_USER, BUSWAY_PASSWORD_FILE and so on.

    Another user than that of the environment, or a proof among the arguments, leaves out the proofs of the environment.
    """
    found: dict[str, Any] = {name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)}
    own = {name: value for name, value in options.items() if name in VARIABLES and value}
    user = own.get("user", found.get("user"))
    if own.keys() & set(_PROOFS) or user != found.get("user", user):
        found = {}
    return cast("CredentialOptions", {**options, **found, **own})


def _nonce() -> bytes:
    return environment.randbits(8 * NONCE).to_bytes(NONCE)
