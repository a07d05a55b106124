"""Streams as users meet them, over every store."""
