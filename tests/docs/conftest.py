"""The server that the blocks of pages find at their address."""

from tests.support.doc_blocks import address

__all__ = ["address"]
