"""Recognises HTTP and TLS on native connections by their first bytes, so that sessions and clients report the cause."""

from typing import Final

from busway.errors import RemoteProtocolError
from busway.settings import DEFAULT_PORT

_METHODS: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI ",
)


def no_bus(first: bytes) -> RemoteProtocolError | None:
    """Return the error for a client whose server sent these bytes first. None if the protocol is not recognised."""
    if first.startswith(b"HTTP/"):
        return RemoteProtocolError(
            "the server answered with HTTP: this is an HTTP port, such as that of busway serve --http; "
            f"native clients need a native port, {DEFAULT_PORT} unless the broker has another"
        )
    if first.startswith(b"\x15\x03"):  # a TLS alert
        return RemoteProtocolError("the server answered with TLS: write tls:// instead of tcp://")
    return None


def asks_http(first: bytes) -> bool:
    """True if a client's first bytes are an HTTP request."""
    return first.startswith(_METHODS)


def http_answer(http: str | None) -> bytes:
    """Return the response to an HTTP request at a native port. `http` is the address of the HTTP port, if any."""
    advice = (
        f"HTTP clients use {http}/."
        if http is not None
        else "This broker has no HTTP port: start it with busway serve --http HOST:PORT."
    )
    body = f"This is the native port of a Busway broker, which does not speak HTTP. {advice}\n".encode()
    head = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close"
    return b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + b"\r\n\r\n" + body
