"""Passwords: the verifier that a users file stores, and the proof of a login. Pure functions over argon2id and HMAC.

A client proves that it knows the password without sending it, as in SCRAM (RFC 5802) with argon2id in place of PBKDF2.
The verifier is no password: who reads the users file can't log in with it. Both sides prove themselves, so a client
notices a server that does not have the verifier.
"""

import hmac
import unicodedata
from base64 import b64decode, b64encode
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import Final, Self

from busway.common import environment
from busway.common.extras import install_command

MEMORY: Final = 19_456
"""KiB of memory for one computation: the recommendation of OWASP, with PASSES and LANES."""
PASSES: Final = 2
LANES: Final = 1
SALT: Final = 16
SIZE: Final = 32

_LEAST: Final = 7_168
"""KiB below which a client does not prove itself: a false server could find the password in a weak proof."""
_MOST: Final = 1 << 20
_MOST_PASSES: Final = 64
_REMEMBERED: Final = 64
_FORM: Final = "argon2id"


@dataclass(frozen=True, slots=True)
class Cost:
    """The salt of a password, and how much its computation costs."""

    salt: bytes
    memory: int = MEMORY
    passes: int = PASSES
    lanes: int = LANES

    def __post_init__(self) -> None:
        sound = self.memory * self.passes // 2 >= _LEAST and self.memory <= _MOST and self.passes <= _MOST_PASSES
        if not sound or not 1 <= self.lanes <= 64 or not 8 <= len(self.salt) <= 64:
            raise ValueError("the cost of the password's computation is out of bounds")


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server stores of a password."""

    cost: Cost
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)

    @classmethod
    def make(cls, password: str, cost: Cost | None = None) -> Self:
        """The verifier of a password, by default with a new salt."""
        if not password:
            raise ValueError("the password is empty")
        cost = cost or Cost(environment.randbits(8 * SALT).to_bytes(SALT))
        key = _key(password, cost)
        return cls(cost, sha256(_client_key(key)).digest(), _server_key(key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The verifier in a users file. Raises ValueError, without the text."""
        try:
            form, parameters, salt, stored, server = text.split("$")
            memory, passes, lanes = (
                int(part.removeprefix(name))
                for part, name in zip(parameters.split(","), ("m=", "t=", "p="), strict=True)
            )
            made = cls(Cost(_bytes(salt), memory, passes, lanes), _bytes(stored), _bytes(server))
        except ValueError as error:
            raise ValueError("no verifier of a password; make one with `busway user password`") from error
        if form != _FORM or len(made.stored) != SIZE or len(made.server) != SIZE:
            raise ValueError("no verifier of a password; make one with `busway user password`")
        return made

    def __str__(self) -> str:
        cost = self.cost
        texts = (b64encode(part).decode() for part in (cost.salt, self.stored, self.server))
        return f"{_FORM}$m={cost.memory},t={cost.passes},p={cost.lanes}${'$'.join(texts)}"

    def verify(self, proof: object, context: bytes) -> bool:
        """Whether a client's proof for this context needs the password."""
        if not isinstance(proof, bytes) or len(proof) != SIZE:
            return False
        key = _mix(proof, hmac.digest(self.stored, context, sha256))
        return hmac.compare_digest(sha256(key).digest(), self.stored)

    def prove(self, context: bytes) -> bytes:
        """The proof of the server for this context."""
        return hmac.digest(self.server, context, sha256)

    def matches(self, password: str) -> bool:
        """Whether this is the password, for doors whose clients send it. Takes tens of milliseconds."""
        return hmac.compare_digest(sha256(_client_key(_key(password, self.cost))).digest(), self.stored)


def decoy(user: str, secret: bytes) -> Cost:
    """The cost that an unknown user is asked for: always the same, so that nobody learns which users there are."""
    return Cost(hmac.digest(secret, user.encode("utf-8", "replace"), sha256)[:SALT])


def prove(password: str, cost: Cost, context: bytes) -> tuple[bytes, bytes]:
    """The proof of a client for this context, and the proof that it expects of the server. Takes tens of milliseconds."""
    key = _key(password, cost)
    client = _client_key(key)
    proof = _mix(client, hmac.digest(sha256(client).digest(), context, sha256))
    return proof, hmac.digest(_server_key(key), context, sha256)


def _client_key(key: bytes) -> bytes:
    return hmac.digest(key, b"busway client", sha256)


def _server_key(key: bytes) -> bytes:
    return hmac.digest(key, b"busway server", sha256)


def _mix(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


_known: OrderedDict[tuple[bytes, Cost], bytes] = OrderedDict()
"""The last computed keys, by the hash of the password: a client that reconnects computes its key once."""
_lock: Final = Lock()


def _key(password: str, cost: Cost) -> bytes:
    try:
        from argon2.low_level import Type, hash_secret_raw  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ModuleNotFoundError(f"passwords need the package argon2-cffi: {install_command('auth')}") from error
    secret = unicodedata.normalize("NFC", password).encode()
    name = sha256(secret).digest(), cost
    with _lock:
        if (key := _known.get(name)) is not None:
            _known.move_to_end(name)
            return key
    key = hash_secret_raw(secret, cost.salt, cost.passes, cost.memory, cost.lanes, SIZE, Type.ID)
    with _lock:
        _known[name] = key
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    return key


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
