"""Doors for those who don't speak Busway's own protocol: JSON over HTTP and WebSocket, CloudEvents, metrics, files."""
