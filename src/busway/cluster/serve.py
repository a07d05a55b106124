"""A broker, alone or as a node of a cluster; `busway.serve` without its doors."""

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
) -> Server:
    """A broker, alone or one of a cluster, with doors of other kinds; `busway.serve` is this with the doors that there are."""
    place = _place(cluster, servers, key)
    if place is not None:
        check_plain("name of a node", name)
        check_plain("name of a cluster", place.name)
        for address in (*addresses, *place.advertise):
            check_plain("address of a node", address)
    if place is not None and place.mirror_of is not None and data is None:
        raise ValueError("a mirror needs a folder for its copies: give data=FOLDER (busway serve --data FOLDER)")
    own = [*addresses, *(() if place is None else place.advertise)]
    if place is not None and place.mirror_of is not None and wanted(place.mirror_of, "", name, own):
        raise ValueError(f"{place.mirror_of!r} is this broker itself, and a mirror is one of another node")
    if place is not None and place.tls is None and tls is not None:
        place = replace(place, tls=tls)  # who shows and asks for certificates does so at links, too
    nodes = None if place is None else partial(_peers, cluster=place)
    if place is not None and (added := _own_fields(place, name or socket.gethostname())):
        fields = {**added, **(fields or {})}
    check_type("insecure", insecure, bool, "True or False")
    exposure = Exposure(insecure=insecure, keyless=place is not None and place.key is None)
    more: dict[str, Any] = {"data": data, "stores": stores, "nodes": nodes, "doors": doors, "exposure": exposure}
    return Server(*addresses, name=name, settings=settings, tls=tls, fields=fields, **more)


def _peers(hub: Hub, cluster: Cluster) -> Peers:
    return Mesh(hub, cluster).peers


def _own_fields(place: Cluster, name: str) -> Fields:
    """The address fields that the list has of the server with this name."""
    return {
        key: value for one in listed(place.servers) if one.name == name for key, value in (one.fields or {}).items()
    }


def _place(
    cluster: str | Cluster | None, servers: str | Sequence[str | Listed] | None, key: str | bytes | None
) -> Cluster | None:
    check_type("cluster", cluster, (str, Cluster, NoneType), "a name, a busway.Cluster or None")
    if isinstance(cluster, Cluster):
        if servers is not None or key is not None:
            raise ValueError("servers and key are part of the busway.Cluster")
        return cluster
    if cluster is None and servers is None:
        if key is not None:
            raise ValueError("a key, but neither cluster nor servers")
        return None
    return Cluster(name=DEFAULT if cluster is None else cluster, servers=listed(servers), key=key)
