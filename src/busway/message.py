"""A message as it came from the bus: a small native object whose parts are made when asked for."""

from busway._core import Message

__all__ = ["Message"]
