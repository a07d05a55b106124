"""`listen` and `dial` connect protocols at an address, over any transport; servers, clients and links call them.

`listen` replaces the socket file of a dead server and refuses that of a live one. Errors are ListenFailed and
ConnectFailed; their text begins with the address.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from busway.errors import ConnectFailed, ListenFailed
from busway.settings import TLS
from busway.transport.address import Address
from busway.transport.memory import MemoryListener, dial_memory
from busway.transport.schemes import Factory, carriers
from busway.transport.tls import client_context, explain, server_context

_BACKLOG: Final = 1024
_TLS_SHUTDOWN: Final = 2.0
"""Seconds that a TLS connection waits for the peer's close_notify."""


class Listener:
    """An open listener. `address` is the address for clients on this host, `bound` the one that it listens on."""

    def __init__(self, address: Address, close: Callable[[], None], bound: Address | None = None) -> None:
        self.address = address
        self.bound = bound or address
        self._close = close

    def close(self) -> None:
        """Stop accepting connections. Existing connections stay open."""
        self._close()


async def listen(address: Address, factory: Factory, *, tls: TLS | None = None, handshake: float = 5.0) -> Listener:
    """Listen at the address, and create a protocol for each connection."""
    try:
        match address.scheme:
            case "memory":
                return Listener(address, MemoryListener(address.path, factory).close)
            case "unix":
                return await _listen_unix(address, factory)
            case "tcp":
                return await _listen_tcp(address, factory, None, None)
            case "tls":
                if tls is None:
                    raise ListenFailed(f"{address}: a tls:// address needs tls=TLS(cert=..., key=...)")
                return await _listen_tcp(address, factory, server_context(tls), handshake)
            case scheme:
                port, close = carriers[scheme].listen(address, factory)
                return Listener(address.reachable(port), close)
    except (OSError, ValueError) as error:
        raise ListenFailed(f"{address}: {_sentence(error)}") from error


async def _listen_tcp(
    address: Address, factory: Factory, context: ssl.SSLContext | None, handshake: float | None
) -> Listener:
    loop = asyncio.get_running_loop()
    host = address.host
    if address.port == 0:  # a host name with several addresses would get a different port for each
        resolved = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        host = str(resolved[0][4][0])
    server = await loop.create_server(
        factory,
        host,
        address.port,
        backlog=_BACKLOG,
        ssl=context,
        ssl_handshake_timeout=handshake,
        ssl_shutdown_timeout=_TLS_SHUTDOWN if context else None,
    )
    port = int(server.sockets[0].getsockname()[1])
    return Listener(address.reachable(port), server.close, replace(address, port=port))


async def _listen_unix(address: Address, factory: Factory) -> Listener:
    path = Path(address.path)
    sock, inode = _bind(path)
    try:
        server = await asyncio.get_running_loop().create_unix_server(factory, sock=sock, backlog=_BACKLOG)
    except BaseException:
        sock.close()
        raise

    def close() -> None:
        try:
            if path.stat().st_ino == inode:  # a later server may have replaced the file
                path.unlink()
        except FileNotFoundError:
            pass  # another process has removed it
        server.close()

    return Listener(address, close)


def _bind(path: Path) -> tuple[socket.socket, int]:
    """Return a socket bound to this file, and the file's inode."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(path)
            sock.bind(str(path))
        path.chmod(0o600)  # no client can connect before listen(), so there is no race
        return sock, path.stat().st_ino
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a dead server. Raises ListenFailed if a server listens, or if it is not a socket."""
    if not path.is_socket():
        raise ListenFailed(f"unix:{path}: the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its backlog is full, so a server is listening
    raise ListenFailed(f"unix:{path}: another server listens at this address")


async def dial(
    address: Address, factory: Factory, *, tls: TLS | None = None, timeout: float
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Connect a new protocol to the server at the address within `timeout` seconds."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            match address.scheme:
                case "memory":
                    return dial_memory(address.path, factory)
                case "unix":
                    return await loop.create_unix_connection(factory, address.path)
                case "tcp":
                    return await loop.create_connection(factory, address.host, address.port)
                case "tls":
                    tls = tls or TLS()
                    return await loop.create_connection(
                        factory,
                        address.host,
                        address.port,
                        ssl=client_context(tls),
                        server_hostname=tls.server_name or address.host,
                        ssl_handshake_timeout=timeout,
                        ssl_shutdown_timeout=_TLS_SHUTDOWN,
                    )
                case scheme:
                    return await carriers[scheme].dial(address, factory)
    except TimeoutError as error:
        raise ConnectFailed(f"{address}: no answer within {timeout:g} s") from error
    except (OSError, ValueError) as error:
        raise ConnectFailed(f"{address}: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return explain(error)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
