"""The two buffers of every connection: the read buffer that all share, and how much output a transport may hold.

A chunk is handled before the next one is read, so one read buffer serves all connections of an event loop; one each
would make an idle connection cost its size. A thread runs one event loop at a time, so the buffer is kept by thread.
"""

import socket
import threading
from asyncio import Transport
from typing import Final

from busway.settings import KiB, MiB

BROKER_READ: Final = 256 * KiB
CLIENT_READ: Final = 64 * KiB
"""A client makes an object of every message of a read; more of them at a time fall out of the processor's cache."""
HIGH_WATER: Final = 1 * MiB
LOW_WATER: Final = 256 * KiB
UNIX_BUFFER: Final = 1 * MiB
"""What a Unix socket holds; with the 208 KiB that the system gives it, writer and reader wait for each other in turn."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.broker = memoryview(bytearray(BROKER_READ))
        self.client = self.broker[:CLIENT_READ]


_local = _Local()


def broker_buffer() -> memoryview:
    """The read buffer of this thread's connections, for a broker."""
    return _local.broker


def client_buffer() -> memoryview:
    """The part of it that a client uses."""
    return _local.client


def tune(transport: Transport) -> None:
    """Set how much output the transport takes before it calls pause_writing(). (TCP_NODELAY is set by asyncio itself.)"""
    transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family == getattr(socket, "AF_UNIX", None):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER)


def is_direct(transport: Transport) -> bool:
    """Whether nothing stands between the transport and the system, so that write_now() can reach that."""
    return transport.get_extra_info("socket") is not None and transport.get_extra_info("sslcontext") is None


def write_now(transport: Transport, data: memoryview) -> None:
    """Write in the midst of a turn of the loop, by a transport that is direct.

    uvloop gives what is written to the system when a turn is over, unless it is more than the transport may hold. (What holds
    it in memory would only say that it is full.)
    """
    transport.set_write_buffer_limits(high=0)
    transport.write(data)
    transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
