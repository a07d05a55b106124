"""What a transport proves about the other end: the names in its certificate, or the user of its process."""

import os
import socket
import ssl
import struct
from asyncio import BaseTransport
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group, as Linux gives them."""


def peer_name(transport: BaseTransport) -> str:
    """The name in the peer's certificate (first alternative name, else common name); empty without one."""
    names, _ = certificate_of(transport)
    return next(
        (name.partition(":")[2] for name in names if ":" in name), names[0].removeprefix("CN=") if names else ""
    )


def certificate_of(transport: BaseTransport) -> tuple[tuple[str, ...], float | None]:
    """The names in the peer's certificate, such as `CN=feed` and `DNS:feed.example`, and when it expires.

    The time is in seconds since 1970. No names and None: the peer has sent no certificate.
    """
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return (), None
    common = [f"CN={value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    other = [f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ())]
    expires = certificate.get("notAfter")
    return (*common, *other), None if expires is None else float(ssl.cert_time_to_seconds(expires))


def peer_uid(transport: BaseTransport) -> int | None:
    """The user of the process at the other end of a Unix socket; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    inner = transport.get_extra_info("socket")
    if option is None or inner is None:
        return None
    # The socket of an event loop is only a view of it, so ask a duplicate.
    try:
        with socket.socket(fileno=os.dup(inner.fileno())) as own:
            _, uid, _ = _CREDENTIALS.unpack(own.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except OSError:
        return None
    return int(uid)
