"""Doors for those who speak other protocols."""
