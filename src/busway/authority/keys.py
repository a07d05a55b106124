"""Ed25519 keys of users: a client signs the server's challenge. Pure functions over the package `cryptography`."""

from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from busway.common.extras import install_command

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIZE = 32
"""Bytes of a public key."""


def new_private() -> "Ed25519PrivateKey":
    """A new private key."""
    _load()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    return Ed25519PrivateKey.generate()


def to_pem(key: "Ed25519PrivateKey") -> bytes:
    """A private key as PEM (PKCS 8, not encrypted)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_private(path: str | Path) -> "Ed25519PrivateKey":
    """The private key in a PEM file. Raises ValueError or OSError."""
    _load()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    data = Path(path).read_bytes()
    try:
        key = load_pem_private_key(data, None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has no private key without a passphrase in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} has no Ed25519 key; make one with `busway user key`")  # noqa: TRY004
    return key


def public_of(key: "Ed25519PrivateKey") -> str:
    """The public key of a private one, as in a users file."""
    return b64encode(key.public_key().public_bytes_raw()).decode()


def check_public(text: str) -> str:
    """A public key of a users file. Raises ValueError."""
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != SIZE:
        raise ValueError(f"{text!r} is no public Ed25519 key, which has {SIZE} bytes in base64")
    return text


def sign(key: "Ed25519PrivateKey", context: bytes) -> bytes:
    return key.sign(context)


def verify(public: str, signature: object, context: bytes) -> bool:
    """Whether a signature of this context was made with the private key of a public one."""
    _load()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    if not isinstance(signature, bytes):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(b64decode(public)).verify(signature, context)
    except (InvalidSignature, ValueError):
        return False
    return True


def _load() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415 - an optional package
    except ImportError as error:
        raise ModuleNotFoundError(f"keys need the package cryptography: {install_command('auth')}") from error
