"""`busway.serve`: creates a broker, alone or as a node of a cluster, with its gateways."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from types import NoneType
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from busway.broker.exposure import Exposure
from busway.broker.server import Door, Server
from busway.cluster import serve as cluster_serve
from busway.cluster.config import Cluster
from busway.cluster.members.servers_file import Listed
from busway.common.checks import check_type
from busway.common.extras import install_command
from busway.common.options import takes_options
from busway.fields import Fields
from busway.gateway.json.config import Http
from busway.settings import TLS, Settings

if TYPE_CHECKING:
    from busway.gateway.http.door import JsonDoor

_NEEDED: Final = frozenset({"aiohttp", "multidict", "picows", "prometheus_client", "yarl"})


class ServerOptions(TypedDict, total=False):
    """The keyword arguments of serve() but `http`."""

    name: str
    settings: Settings | None
    tls: TLS | None
    fields: Fields | None
    data: str | PathLike[str] | None
    stores: Mapping[str, str] | None
    cluster: str | Cluster | None
    servers: str | Sequence[str | Listed] | None
    key: str | bytes | None
    insecure: bool
    users: str | PathLike[str] | None


@takes_options(cluster_serve.serve)
def serve(*addresses: str, http: str | Http | None = None, **options: Unpack[ServerOptions]) -> Server:
    """A broker that listens on these addresses (`unix:PATH`, `tcp://HOST:PORT`, `tls://HOST:PORT`), and in memory.

    The broker adds `fields` to each message that it forwards. `data` is a folder for state that survives a restart:
    streams, channels, pins and the guid of the broker. `stores` are databases (`sqlite:///PATH`,
    `postgresql://USER@HOST/NAME`); their keys are the names by which clients store streams in them.

    With `cluster` (a name, or a `busway.Cluster` for more settings) or `servers` (some other nodes:
    `tcp://HOST:PORT`, `HOST:PORT`, `PORT`) the broker is a node of a cluster, whose nodes have the same name and
    `key`. If the list `servers` has address fields for the server with this `name`, the broker adds them to each
    message, too.

    `http` (`HOST:PORT`, or a `busway.Http` for more settings) is the address for JSON over HTTP and WebSocket; it needs
    `busway[http]`.

    `users` is a file with the users of all doors, their roles and grants. Without it every client may do everything.

    An address that other hosts can reach needs authentication: `users`, `Settings.authenticate` or TLS with `ca` for native
    clients, keys for HTTP, and a `key` for a cluster. `insecure=True` allows it without, with a warning in the log.

    ::

        async with busway.serve("tcp://127.0.0.1:7420") as server:
            await server.serve_forever()
    """
    check_type("http", http, (str, Http, NoneType), "HOST:PORT, a busway.Http or None")
    doors: list[Callable[[Server], Door]] = []
    if http is not None:
        exposure = Exposure(insecure=options.get("insecure", False))
        doors.append(_json(http if isinstance(http, Http) else Http(address=http), exposure))
    return cluster_serve.serve(*addresses, doors=doors, **options)


def _json(settings: Http, exposure: Exposure) -> "partial[JsonDoor]":
    try:
        from busway.gateway.http.door import JsonDoor  # noqa: PLC0415, needs aiohttp, an optional package
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        raise ImportError(f"the JSON door needs {error.name}: {install_command('http')}", name=error.name) from error
    from busway.gateway.auth.keys import Keyring  # noqa: PLC0415

    return partial(JsonDoor, settings=settings, keys=Keyring.load(settings.keys, os.environ), exposure=exposure)
