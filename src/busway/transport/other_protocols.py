"""Other protocols at the ends of a native connection, known by their first bytes. Values and rules."""

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
    """The error for a client whose server began with these bytes. None if they are of no protocol that is known here."""
    if first.startswith(b"HTTP/"):
        return RemoteProtocolError(
            "the server answered with HTTP: this is an HTTP port, such as that of busway serve --http; "
            f"native clients need a native port, {DEFAULT_PORT} unless the broker has another"
        )
    if first.startswith(b"\x15\x03"):  # a TLS alert
        return RemoteProtocolError("the server answered with TLS: write tls:// instead of tcp://")
    return None


def asks_http(first: bytes) -> bool:
    """Whether a client began with a request of HTTP."""
    return first.startswith(_METHODS)


def http_answer(http: str | None) -> bytes:
    """What an HTTP client hears at a native address. `http` is the address of the HTTP port, if there is one."""
    where = (
        f"HTTP clients use {http}/."
        if http is not None
        else "This broker has no HTTP port: start it with busway serve --http HOST:PORT."
    )
    body = f"This is the native port of a Busway broker, which does not speak HTTP. {where}\n".encode()
    head = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close"
    return b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + b"\r\n\r\n" + body
