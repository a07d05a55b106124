"""Fixtures of the tests with several nodes."""

from tests.support.cluster import cluster
from tests.support.cluster_channels import three
from tests.support.mirror_processes import processes
from tests.support.mirrored import nodes

__all__ = ["cluster", "nodes", "processes", "three"]
