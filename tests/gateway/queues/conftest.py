"""Fixtures: a cluster whose nodes have JSON doors."""

from tests.support.cluster import cluster

__all__ = ["cluster"]
