"""Creates a broker, alone or as a node of a cluster; `busway.serve` calls it and adds the doors."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from types import NoneType
from typing import Any

from busway.broker.exposure import Exposure
from busway.broker.hub import Hub
from busway.broker.peers import Peers
from busway.broker.server import Door, Server
from busway.cluster.config import DEFAULT, Cluster
from busway.cluster.members.servers_file import Listed, listed
from busway.cluster.mesh import Mesh
from busway.cluster.node import check_plain
from busway.cluster.promotion.returned import settle
from busway.cluster.replication.replica import wanted
from busway.common.checks import check_type
from busway.fields import Fields
from busway.settings import TLS, Settings


def serve(
    *addresses: str,
    name: str = "",
    settings: Settings | None = None,
    tls: TLS | None = None,
    fields: Fields | None = None,
    data: str | PathLike[str] | None = None,
    stores: Mapping[str, str] | None = None,
    cluster: str | Cluster | None = None,
    servers: str | Sequence[str | Listed] | None = None,
    key: str | bytes | None = None,
    doors: Sequence[Callable[[Server], Door]] = (),
    insecure: bool = False,
    users: str | PathLike[str] | None = None,
) -> Server:
    """Create a broker, alone or as a node of a cluster. `doors` build doors for other protocols."""
    config = _config(cluster, servers, key)
    if config is not None:
        check_plain("name of a node", name)
        check_plain("name of a cluster", config.name)
        for address in (*addresses, *config.advertise):
            check_plain("address of a node", address)
    if config is not None and config.mirror_of is not None and data is None:
        raise ValueError("a mirror needs a folder for its replicas: pass data=FOLDER (busway serve --data FOLDER)")
    own = [*addresses, *(() if config is None else config.advertise)]
    if config is not None and config.mirror_of is not None and wanted(config.mirror_of, "", name, own):
        raise ValueError(f"mirror_of={config.mirror_of!r} is this broker itself; name another node")
    if config is not None and config.tls is None and tls is not None:
        config = replace(config, tls=tls)  # certificates of the server apply to links too
    nodes = None if config is None else partial(_peers, cluster=config)
    if config is not None and (added := _own_fields(config, name or socket.gethostname())):
        fields = {**added, **(fields or {})}
    check_type("insecure", insecure, bool, "True or False")
    exposure = Exposure(insecure=insecure, keyless=config is not None and config.key is None)
    if users is not None and exposure.keyless:
        raise ValueError(
            "a cluster with users needs a key, or any client could join as a node: give key=... to all nodes"
        )
    more: dict[str, Any] = {
        "users": users,
        "data": data,
        "stores": stores,
        "nodes": nodes,
        "doors": doors,
        "exposure": exposure,
    }
    if config is not None:
        more["settle"] = settle
    return Server(*addresses, name=name, settings=settings, tls=tls, fields=fields, **more)


def _peers(hub: Hub, cluster: Cluster) -> Peers:
    return Mesh(hub, cluster).peers


def _own_fields(config: Cluster, name: str) -> Fields:
    """The address fields of the server with this name in the list."""
    return {
        key: value
        for server in listed(config.servers)
        if server.name == name
        for key, value in (server.fields or {}).items()
    }


def _config(
    cluster: str | Cluster | None, servers: str | Sequence[str | Listed] | None, key: str | bytes | None
) -> Cluster | None:
    check_type("cluster", cluster, (str, Cluster, NoneType), "a name, a busway.Cluster or None")
    if isinstance(cluster, Cluster):
        if servers is not None or key is not None:
            raise ValueError("servers and key can't be combined with a busway.Cluster; set them there")
        return cluster
    if cluster is None and servers is None:
        if key is not None:
            raise ValueError("a key needs cluster or servers")
        return None
    return Cluster(name=DEFAULT if cluster is None else cluster, servers=listed(servers), key=key)
