"""Two nodes show each other that they have the cluster's key, without telling it.

A machine without state. Each side proves with the nonces of both, so that neither a proof that was overheard nor one's own
sent back is of any use.
"""

import hmac
from hashlib import sha256
from typing import Final

NONCE: Final = 16
"""Bytes of chance that each side gives."""


def prove(key: bytes, *, dialler: bytes, acceptor: bytes, guids: tuple[str, str], dialled: bool) -> bytes:
    """The proof of one side: `dialled` says of which. Nonces and guids are those of the dialler and of the acceptor."""
    if len(dialler) != NONCE or len(acceptor) != NONCE:
        raise ValueError(f"a nonce has {NONCE} bytes")
    said = b"\0".join((b"busway link 1", b"dialler" if dialled else b"acceptor", guids[0].encode(), guids[1].encode()))
    return hmac.digest(key, said + dialler + acceptor, sha256)


def holds(proof: object, wanted: bytes) -> bool:
    """Whether a proof is right."""
    return isinstance(proof, bytes) and hmac.compare_digest(proof, wanted)
