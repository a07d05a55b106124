"""The place of a broker in a cluster, from the flags of `busway serve`."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import busway
from busway.cluster.config import DEFAULT
from busway.cluster.members.servers_file import FILE, chosen
from busway.transport.tls import client_context

KEY: Final = "BUSWAY_CLUSTER_KEY"
"""The variable with what only the nodes know."""


def place(
    name: str | None,
    servers: str | None,
    file: str | None,
    data: str | None,
    key_file: str | None,
    advertise: list[str] | None,
    *,
    discover: bool,
    mirror: tuple[str | None, float | None, float | None],
    tls: busway.TLS | None,
) -> busway.Cluster | None:
    """Its place in a cluster, if it is to have one."""
    found = Path(data) / FILE if data is not None else None
    if file is None and found is not None and found.exists():
        file = str(found)
    if name is None and servers is None and file is None and not discover:
        if key_file or advertise or tls:
            raise ValueError(
                "--cluster-key-file, --cluster-ca and --advertise are for a cluster: give --cluster or --servers"
            )
        if mirror != (None, None, None):
            raise ValueError("--mirror-of, --mirror-wait and --takeover are for a cluster: give --cluster or --servers")
        return None
    key = _cluster_key(key_file)
    listed = chosen(None, servers, file)
    of, wait, takeover = mirror
    if tls is not None:
        client_context(tls)  # a file that is wrong is found here, not when somebody is dialled
    chosen_place = busway.Cluster(
        name=DEFAULT if name is None else name,
        servers=listed,
        key=key,
        advertise=advertise or (),
        mirror_of=of,
        discover=discover,
        tls=tls,
    )
    given: dict[str, Any] = {"mirror_wait": wait, "takeover": takeover}
    return dataclasses.replace(chosen_place, **{name: value for name, value in given.items() if value is not None})


def _cluster_key(file: str | None) -> str | bytes | None:
    """What only the nodes know. An empty one is a mistake, as of a secret that was not written yet: it would let everybody in."""
    if file is not None:
        given = Path(file).read_bytes().strip()
        if not given:
            raise ValueError(
                f"the key of the cluster in {file} is empty; without --cluster-key-file everybody who knows the name of the cluster may join"
            )
        return given
    named = os.environ.get(KEY)
    if named is not None and not named.strip():
        raise ValueError(f"{KEY} is empty; unset it for a cluster that everybody who knows its name may join")
    return named
