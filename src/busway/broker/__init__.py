"""The broker: sessions of clients around the native engine."""

from busway.broker.server import Server

__all__ = ["Server"]
