"""TLS contexts from a TLS value, and the name a certificate gives to the peer."""

import ssl
from asyncio import BaseTransport
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from busway.settings import TLS


def server_context(tls: TLS) -> ssl.SSLContext:
    """Needs a certificate; with an authority its clients must show one too."""
    if tls.cert is None:
        raise ValueError("a tls:// address needs tls=TLS(cert=..., key=...)")
    _check_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, tls)
    if tls.ca is not None:
        with _naming(f"{tls.ca}: no certificate of an authority (ca)"):
            context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: TLS) -> ssl.SSLContext:
    """Trusts the given authority or, without one, the system's."""
    _check_files(tls)
    with _naming(f"{tls.ca}: no certificate of an authority (ca)"):
        context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _show(context, tls)
    return context


def _show(context: ssl.SSLContext, tls: TLS) -> None:
    """Load the certificate to be shown, if there is one."""
    if tls.cert is not None:
        files = f"{tls.cert}" if tls.key is None else f"{tls.cert} and {tls.key}"
        with _naming(f"{files}: no certificate with its key (cert, key)"):
            context.load_cert_chain(tls.cert, tls.key)


@contextmanager
def _naming(fault: str) -> Iterator[None]:
    """Name the file that is wrong; the ssl module doesn't."""
    try:
        yield
    except ssl.SSLError as error:
        raise ValueError(f"{fault}: {_words(error)}") from error


def explain(error: ssl.SSLError) -> str:
    """What a handshake failed of, without the words of the C library's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate was not accepted: {error.verify_message.rstrip('.')}"
    if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
        return f"the other side does not speak TLS ({_words(error)})"
    return f"TLS failed: {_words(error)}"


def _words(error: ssl.SSLError) -> str:
    return error.reason.replace("_", " ").lower() if error.reason else "no such data in the file"


def _check_files(tls: TLS) -> None:
    """Name the file that can't be read, and what for; the ssl module doesn't."""
    for name, path in (("cert", tls.cert), ("key", tls.key), ("ca", tls.ca)):
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{path} ({name}): {error.strerror}") from error


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
