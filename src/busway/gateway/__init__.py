"""Gateways for clients without Busway's native protocol: JSON over HTTP and WebSocket, CloudEvents, metrics and files."""
