"""Cluster flags of `busway serve`: turns them into the busway.Cluster of the node. Called by busway.cli.serve.command."""

import dataclasses
import os
from pathlib import Path
from typing import Final

import busway
from busway.cluster.config import DEFAULT
from busway.cluster.members.servers_file import FILE, chosen
from busway.transport.tls import client_context

KEY: Final = "BUSWAY_CLUSTER_KEY"
"""The environment variable with the secret key of the cluster."""


def cluster_of(
    name: str | None,
    servers: str | None,
    file: str | None,
    data: str | None,
    key_file: str | None,
    advertise: list[str] | None,
    *,
    discover: bool,
    mirror: tuple[str | None, float | None],
    tls: busway.TLS | None,
) -> busway.Cluster | None:
    """Return the node's cluster, or None without cluster flags. Raises ValueError for conflicting flags."""
    found = Path(data) / FILE if data is not None else None
    if file is None and found is not None and found.exists():
        file = str(found)
    if name is None and servers is None and file is None and not discover:
        if key_file or advertise or tls:
            raise ValueError(
                "--cluster-key-file, --cluster-ca and --advertise are for a cluster: give --cluster or --servers"
            )
        if mirror != (None, None):
            raise ValueError("--mirror-of and --mirror-wait are for a cluster: give --cluster or --servers")
        return None
    key = _cluster_key(key_file)
    listed = chosen(None, servers, file)
    of, wait = mirror
    if tls is not None:
        client_context(tls)  # reports a bad file now instead of at the first link
    made = busway.Cluster(
        name=DEFAULT if name is None else name,
        servers=listed,
        key=key,
        advertise=advertise or (),
        mirror_of=of,
        discover=discover,
        tls=tls,
    )
    return made if wait is None else dataclasses.replace(made, mirror_wait=wait)


def _cluster_key(file: str | None) -> str | bytes | None:
    """Return the secret key. Raises ValueError for an empty key, with which any node could join."""
    if file is not None:
        given = Path(file).read_bytes().strip()
        if not given:
            raise ValueError(
                f"--cluster-key-file: {file} is empty; write a key into it, or leave the flag out to let every node that knows "
                "the name of the cluster join"
            )
        return given
    named = os.environ.get(KEY)
    if named is not None and not named.strip():
        raise ValueError(
            f"{KEY} is empty; unset it to let every node that knows the name of the cluster join, or set it to the key"
        )
    return named
