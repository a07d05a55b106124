"""The two-file protocol of `busway mount` and `busway fusebus`, from the side of a program that uses the files.

A client needs a mount and nothing else: no server's address, no event loop.
"""

from busway.fuse.client import Client, Received
from busway.fuse.format import Meta

__all__ = ["Client", "Meta", "Received"]
