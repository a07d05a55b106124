"""The secret of a session, and the public number that is made of it.

A client draws the secret and shows it to a broker only, in HELLO. Everybody sees the number: the ids of messages begin
with it. The number is a digest of the secret, so any broker can check a secret and has to store nothing for it.
"""

from hashlib import sha256
from typing import Final

from busway import ambient

LEAST: Final = 16
"""Bytes of a secret, at least."""
MOST: Final = 64
"""Bytes of a secret, at most."""
_DRAWN: Final = 32
_NUMBER: Final = 8


def draw_secret() -> bytes:
    """A new secret that cannot be guessed."""
    while True:
        secret = ambient.randbits(8 * _DRAWN).to_bytes(_DRAWN)
        if session_of(secret):
            return secret


def session_of(secret: bytes) -> int:
    """The public number of the session with this secret: the first 8 bytes of its SHA-256, most significant first."""
    return int.from_bytes(sha256(secret).digest()[:_NUMBER])


def is_secret(secret: object, session: int) -> bool:
    """Whether this is the secret of the session with this number."""
    return isinstance(secret, bytes) and LEAST <= len(secret) <= MOST and session_of(secret) == session
