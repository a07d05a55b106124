"""The mutual proof that two nodes have the cluster's key, without sending it.

`links` and `peer` call it for each connection. Each proof covers the nonces of both sides, so an overheard proof or a
reflected one is useless.
"""

import hmac
from hashlib import sha256
from typing import Final

NONCE: Final = 16
"""Random bytes from each side."""


def prove(key: bytes, *, dialler: bytes, acceptor: bytes, guids: tuple[str, str], dialled: bool) -> bytes:
    """The proof of the dialler (`dialled`) or the acceptor. `guids` are those of the dialler and the acceptor."""
    if len(dialler) != NONCE or len(acceptor) != NONCE:
        raise ValueError(f"a nonce must have {NONCE} bytes")
    side = b"dialler" if dialled else b"acceptor"
    content = b"\0".join((b"busway link 1", side, guids[0].encode(), guids[1].encode()))
    return hmac.digest(key, content + dialler + acceptor, sha256)


def holds(proof: object, wanted: bytes) -> bool:
    """Whether a proof is the wanted one, compared in constant time."""
    return isinstance(proof, bytes) and hmac.compare_digest(proof, wanted)
