"""Creates TLS contexts from TLS settings, for `listen` and `dial`."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from busway.settings import TLS


def server_context(tls: TLS) -> ssl.SSLContext:
    """Create the context of a server, which needs a certificate. With `ca` its clients must present a certificate."""
    if tls.cert is None:
        raise ValueError("a tls:// address needs tls=TLS(cert=..., key=...)")
    _check_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, tls)
    if tls.ca is not None:
        with _error_prefix(f"{tls.ca}: no certificate of an authority (ca)"):
            context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: TLS) -> ssl.SSLContext:
    """Create the context of a client, which trusts `ca`, or the system's authorities without it."""
    _check_files(tls)
    with _error_prefix(f"{tls.ca}: no certificate of an authority (ca)"):
        context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_certificate(context, tls)
    return context


def _load_certificate(context: ssl.SSLContext, tls: TLS) -> None:
    """Load the certificate to present, if there is one."""
    if tls.cert is not None:
        files = f"{tls.cert}" if tls.key is None else f"{tls.cert} and {tls.key}"
        with _error_prefix(f"{files}: no certificate with its key (cert, key)"):
            context.load_cert_chain(tls.cert, tls.key)


@contextmanager
def _error_prefix(prefix: str) -> Iterator[None]:
    """Put a prefix with the wrong file before errors of the ssl module, which does not name it."""
    try:
        yield
    except ssl.SSLError as error:
        raise ValueError(f"{prefix}: {_words(error)}") from error


def explain(error: ssl.SSLError) -> str:
    """Describe why a handshake failed, without source locations of OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate was not accepted: {error.verify_message.rstrip('.')}"
    if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
        return f"the peer does not speak TLS ({_words(error)})"
    return f"TLS failed: {_words(error)}"


def _words(error: ssl.SSLError) -> str:
    return error.reason.replace("_", " ").lower() if error.reason else "the file contains no PEM data for it"


def _check_files(tls: TLS) -> None:
    """Raise ValueError with the name of a file that can't be read, since the ssl module does not name it."""
    for name, path in (("cert", tls.cert), ("key", tls.key), ("ca", tls.ca)):
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{path} ({name}): {error.strerror}") from error
