"""Several nodes."""
