"""TLS contexts from a TLS value, and the name a certificate gives to the peer."""

import ssl
from asyncio import BaseTransport
from pathlib import Path

from busway.settings import TLS


def server_context(tls: TLS) -> ssl.SSLContext:
    """Needs a certificate; with an authority its clients must show one too."""
    if tls.cert is None:
        raise ValueError("a tls:// address needs tls=TLS(cert=..., key=...)")
    _check_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.cert, tls.key)
    if tls.ca is not None:
        context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: TLS) -> ssl.SSLContext:
    """Trusts the given authority or, without one, the system's."""
    _check_files(tls)
    context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


def _check_files(tls: TLS) -> None:
    """Name the file that can't be read; the ssl module doesn't."""
    for path in (tls.cert, tls.key, tls.ca):
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{path}: {error.strerror}") from error


def peer_name(transport: BaseTransport) -> str:
    """The name in the peer's certificate (first alternative name, else the common name); empty without one."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return ""
    for _, name in certificate.get("subjectAltName", ()):
        return str(name)
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
