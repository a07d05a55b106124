"""The broker: a server with the sessions of its clients around the native engine."""

from busway.broker.server import Server

__all__ = ["Server"]
