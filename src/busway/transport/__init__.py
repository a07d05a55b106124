"""Transports for connections of brokers and clients: memory, Unix sockets, TCP and TLS."""

from busway.transport.address import Address, parse
from busway.transport.buffers import broker_buffer, client_buffer, is_direct, tune, write_now
from busway.transport.driver import Listener, dial, listen

__all__ = [
    "Address",
    "Listener",
    "broker_buffer",
    "client_buffer",
    "dial",
    "is_direct",
    "listen",
    "parse",
    "tune",
    "write_now",
]
