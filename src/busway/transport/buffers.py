"""Buffers of connections: a read buffer shared by all connections of a thread, and write-buffer limits.

Protocols process a chunk before the event loop reads the next one, so one read buffer serves all connections, and an
idle connection costs no buffer. A thread runs one event loop at a time, so each thread has its own buffer.
"""

import socket
import threading
from asyncio import Transport
from typing import Final

from busway.settings import KiB, MiB

BROKER_READ: Final = 256 * KiB
CLIENT_READ: Final = 64 * KiB
"""Less than the broker's, since a client creates an object per message, and more would not fit in the CPU cache."""
HIGH_WATER: Final = 1 * MiB
LOW_WATER: Final = 256 * KiB
UNIX_BUFFER: Final = 1 * MiB
"""Send buffer of a Unix socket. With the system's default of 208 KiB, writer and reader block each other in turn."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.broker = memoryview(bytearray(BROKER_READ))
        self.client = self.broker[:CLIENT_READ]


_local = _Local()


def broker_buffer() -> memoryview:
    """Return the read buffer of a broker's connections in this thread."""
    return _local.broker


def client_buffer() -> memoryview:
    """Return the read buffer of a client's connections in this thread: the start of the broker's buffer."""
    return _local.client


def tune(transport: Transport) -> None:
    """Set how much output the transport buffers before it calls pause_writing(). asyncio itself sets TCP_NODELAY."""
    transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family == getattr(socket, "AF_UNIX", None):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER)


def is_direct(transport: Transport) -> bool:
    """True if the transport writes to a socket without TLS, which write_now() requires."""
    return transport.get_extra_info("socket") is not None and transport.get_extra_info("sslcontext") is None


def write_now(transport: Transport, data: memoryview) -> None:
    """Write to the socket at once, within an iteration of the event loop. The transport must be direct.

    uvloop writes to the socket at the end of an iteration, unless the data exceeds the write-buffer limit. Therefore
    this sets the limit to 0 for the call. A memory transport would only call pause_writing().
    """
    transport.set_write_buffer_limits(high=0)
    transport.write(data)
    transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
