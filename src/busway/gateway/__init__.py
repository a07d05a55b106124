"""Gateways for clients without the native protocol: JSON over HTTP and WebSocket, CloudEvents, metrics and files."""
