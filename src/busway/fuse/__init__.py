"""Client of the two-file protocol of `busway mount` and `busway fusebus`, for programs that use a mount.

A client needs neither a server's address nor an event loop.
"""

from busway.fuse.client import Client, Received
from busway.fuse.format import Meta

__all__ = ["Client", "Meta", "Received"]
