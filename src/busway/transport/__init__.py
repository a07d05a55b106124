"""How bytes travel: memory, Unix sockets, TCP and TLS, the same driver over other sockets."""

from busway.transport.address import Address, parse
from busway.transport.driver import Listener, dial, listen
from busway.transport.flow import read_buffer, tune

__all__ = ["Address", "Listener", "dial", "listen", "parse", "read_buffer", "tune"]
