"""Health checks and Prometheus metrics of a server, which the JSON door serves over HTTP."""

from busway.gateway.monitoring.metrics import exposition, families

__all__ = ["exposition", "families"]
