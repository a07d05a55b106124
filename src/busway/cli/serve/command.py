"""`busway serve`: turns its flags into a broker, which `run` runs. Called by busway.cli.app."""

import dataclasses
from typing import Annotated, Any

import typer

import busway
from busway.broker.streams.stores.names import store_of
from busway.cli.common import field_flags, flags, logs, terminal, values
from busway.cli.serve.cluster_flags import KEY, cluster_of
from busway.cli.serve.run import run
from busway.cluster.config import DEFAULT
from busway.cluster.members.servers_file import FILE
from busway.settings import DEFAULT_URL, Settings

_LIMITS = "Limits and times"
_CLUSTER = "Cluster"
_HTTP = "JSON over HTTP and WebSocket"
_DEFAULTS = Settings()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _size(name: str, help: str, flag: str = "") -> Any:  # noqa: A002 - typer's own word
    kib = getattr(_DEFAULTS, name) // 1024
    shown = f"{kib}k" if kib % 1024 else f"{kib // 1024}m"
    return typer.Option(
        flag or _flag(name),
        help=help,
        parser=values.size,
        metavar="SIZE",
        show_default=shown,
        rich_help_panel=_LIMITS,
    )


def _number(name: str, help: str) -> Any:  # noqa: A002
    shown = str(getattr(_DEFAULTS, name))
    return typer.Option(
        _flag(name), help=help, parser=values.count, metavar="N", show_default=shown, rich_help_panel=_LIMITS
    )


def _time(name: str, help: str) -> Any:  # noqa: A002
    shown = f"{getattr(_DEFAULTS, name):g}s"
    return typer.Option(
        _flag(name), help=help, parser=values.duration, metavar="TIME", show_default=shown, rich_help_panel=_LIMITS
    )


def serve(
    unix: Annotated[
        list[str] | None, typer.Option("--unix", help="Unix socket to listen on; repeatable.", metavar="PATH")
    ] = None,
    tcp: Annotated[
        list[str] | None,
        typer.Option(
            "--tcp",
            help="TCP address to listen on; repeatable; port 0 picks a free one.",
            metavar="HOST:PORT",
            show_default="127.0.0.1:7420 if nothing is given",
        ),
    ] = None,
    tls: Annotated[
        list[str] | None,
        typer.Option("--tls", help="TLS address to listen on; needs --cert and --key.", metavar="HOST:PORT"),
    ] = None,
    cert: Annotated[
        str | None, typer.Option("--cert", help="PEM file of the server's certificate.", metavar="FILE")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="PEM file of the private key of the certificate.", metavar="FILE")
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca", help="PEM file of an authority; clients must present a certificate that it signed.", metavar="FILE"
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            "--users",
            help="File with the users of all doors, their roles and grants; reloaded when it changes and on SIGHUP.",
            metavar="FILE",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen also where other hosts can connect without authentication; warns."),
    ] = False,
    name: Annotated[str, typer.Option("--name", help="Name of this broker, shown to clients.")] = "",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Folder for streams, channels, pins and the identity of the broker; without it they are lost when the broker stops.",
            metavar="FOLDER",
        ),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            "--store",
            help="A database in which clients may store streams, under this name: sqlite:///PATH, "
            "postgresql://USER@HOST/NAME, env:VARIABLE or file:PATH with such a URL; repeatable.",
            metavar="NAME=URL",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Join the cluster of this name.",
            metavar="NAME",
            show_default=f"{DEFAULT} if servers are given",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            help="Other nodes of the cluster: HOST:PORT, PORT or addresses, separated by commas; may include this one.",
            metavar="LIST",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    servers_file: Annotated[
        str | None,
        typer.Option(
            "--servers-file",
            help="File with the list of servers, used if --servers is not given.",
            metavar="FILE",
            show_default=f"{FILE} in the data folder, if it is there",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    cluster_key: Annotated[
        str | None,
        typer.Option(
            "--cluster-key-file",
            help=f"File with the secret key of the cluster; or use the variable {KEY}.",
            metavar="FILE",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    cluster_ca: Annotated[
        str | None,
        typer.Option(
            "--cluster-ca",
            help="PEM file of the authority that signed the other nodes' certificates, for links to tls:// addresses.",
            metavar="FILE",
            show_default="the authority of --ca, or else the system's",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            "--advertise",
            help="Address at which other nodes and their clients reach this node; repeatable.",
            metavar="ADDRESS",
            show_default="where it listens",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    mirror_of: Annotated[
        str | None,
        typer.Option(
            "--mirror-of",
            help="Mirror this node: keep a copy of everything it stores; needs --data.",
            metavar="NODE",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    mirror_wait: Annotated[
        float | None,
        typer.Option(
            "--mirror-wait",
            help="How long an acknowledgement waits for the mirror, in streams with safety mirrored.",
            parser=values.duration,
            metavar="TIME",
            show_default="5s",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    discover: Annotated[
        bool,
        typer.Option(
            "--discover",
            help="Find other nodes on the local network by multicast DNS; needs busway\\[mdns].",
            rich_help_panel=_CLUSTER,
        ),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            help="Address for JSON over HTTP and WebSocket; port 0 picks a free one; needs busway\\[http].",
            metavar="HOST:PORT",
            rich_help_panel=_HTTP,
        ),
    ] = None,
    http_cors: Annotated[
        list[str] | None,
        typer.Option(
            "--http-cors",
            help="Origin whose pages may call the HTTP port; *: all origins; repeatable.",
            metavar="ORIGIN",
            rich_help_panel=_HTTP,
        ),
    ] = None,
    http_host: Annotated[
        list[str] | None,
        typer.Option(
            "--http-host",
            help="Host name that HTTP clients may use, besides localhost and the address; *: any name; repeatable.",
            metavar="NAME",
            rich_help_panel=_HTTP,
        ),
    ] = None,
    http_keys: Annotated[
        str | None,
        typer.Option(
            "--http-keys",
            help="File of keys; HTTP requests must be signed with one of them.",
            metavar="FILE",
            rich_help_panel=_HTTP,
        ),
    ] = None,
    http_body: Annotated[
        int | None,
        typer.Option(
            "--http-body",
            help="Largest HTTP request.",
            parser=values.size,
            metavar="SIZE",
            show_default="8m",
            rich_help_panel=_HTTP,
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", help="A field that is added to every message; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    frame: Annotated[int | None, _size("frame", "Largest frame.")] = None,
    topic: Annotated[int | None, _size("topic", "Longest topic.")] = None,
    fields: Annotated[int | None, _size("fields", "Largest size of all fields of a message.", "--field-bytes")] = None,
    outbox: Annotated[int | None, _size("outbox", "Largest number of bytes that wait for one connection.")] = None,
    subscriptions: Annotated[
        int | None, _number("subscriptions", "Largest number of subscriptions of a connection.")
    ] = None,
    expressions: Annotated[
        int | None,
        _number("expressions", "Largest number of regular expressions in the subscriptions of a connection."),
    ] = None,
    topics: Annotated[
        int | None, _number("topics", "Largest number of topics that a connection may abbreviate to numbers.")
    ] = None,
    senders: Annotated[
        int | None, _number("senders", "Largest number of senders that a connection may abbreviate to numbers.")
    ] = None,
    pending: Annotated[
        int | None, _number("pending", "Largest number of requests and pushes in flight per connection.")
    ] = None,
    connections: Annotated[int | None, _number("connections", "Largest number of connections.")] = None,
    streams: Annotated[int | None, _number("streams", "Largest number of streams.")] = None,
    min_free_disk: Annotated[
        int | None,
        typer.Option(
            "--min-free-disk",
            help="Free space on the disk of the data folder below which the broker refuses durable publishes to its streams; 0: only when the disk is full.",
            parser=values.size,
            metavar="SIZE",
            show_default="2% of the disk, at most 256m",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    kept: Annotated[int | None, _number("kept", "Largest number of retained messages of one client.")] = None,
    kept_bytes: Annotated[
        int | None, _size("kept_bytes", "Largest number of bytes of retained messages of one client.")
    ] = None,
    grace: Annotated[
        float | None, _time("grace", "How long posts and temporary channels remain after their connection is lost.")
    ] = None,
    provider_timeout: Annotated[
        float | None,
        _time("provider_timeout", "Time for one of several services to answer before the next one is tried."),
    ] = None,
    patience: Annotated[
        float | None, _time("patience", "How long publishers wait for a full subscriber that takes no messages.")
    ] = None,
    stall: Annotated[
        float | None, _time("stall", "A full subscriber that is silent for this time counts as stuck.")
    ] = None,
    heartbeat: Annotated[float | None, _time("heartbeat", "Silence after which the broker pings a connection.")] = None,
    handshake: Annotated[float | None, _time("handshake", "Time for the handshake of a new connection.")] = None,
    drain: Annotated[float | None, _time("drain", "Time to deliver waiting messages when stopping.")] = None,
    log_level: Annotated[
        logs.Level | None,
        typer.Option(
            "--log-level",
            help="Least severe log lines on stderr.",
            envvar=logs.LEVEL,
            show_default="warning; info with JSON; error with -q",
        ),
    ] = None,
    log_format: Annotated[
        logs.Format,
        typer.Option("--log-format", help="Log lines as text, or as one JSON object each.", envvar=logs.FORMAT),
    ] = "text",
    seconds: flags.For = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Run a broker. SIGTERM and Ctrl-C deliver waiting messages, then stop; a second signal stops at once.

    busway serve
    busway serve --unix my_bus --tcp 127.0.0.1:8000
    busway serve --data ./data -f region=eu
    busway serve --tls 0.0.0.0:7421 --cert server.pem --key server.key --ca clients.pem
    busway serve --tcp 0.0.0.0:7420 --insecure --cluster prod --cluster-key-file key --servers srv1:7420,srv2:7420
    busway serve --tls 0.0.0.0:7421 --cert srv1.pem --key srv1.key --ca ours.pem --cluster-key-file key --servers tls://srv2:7421
    busway serve --servers srv1:7420 --mirror-of srv1 --data ./data
    busway serve --http 127.0.0.1:15555
    busway serve --tls 0.0.0.0:7420 --cert server.pem --key server.key --users users.toml
    """
    given = locals()
    try:
        logs.begin(log_level, log_format, quiet=quiet)
        addresses = [values.listen_address(kind, text) for kind in ("unix", "tcp", "tls") for text in given[kind] or ()]
        secure = any(address.startswith("tls:") for address in addresses)
        if secure and not (cert and key):
            raise typer.BadParameter("--tls needs --cert and --key")
        if not secure and (cert or key or ca):
            raise typer.BadParameter("--cert, --key and --ca are for TLS: give the address with --tls HOST:PORT")
        names = {option.name for option in dataclasses.fields(Settings)} - {"servers"}  # --servers is for the cluster
        limits = {option: given[option] for option in names if given.get(option) is not None}
        member = cluster_of(
            cluster,
            servers,
            servers_file,
            data,
            cluster_key,
            advertise,
            discover=discover,
            mirror=(mirror_of, mirror_wait),
            tls=None if cluster_ca is None else busway.TLS(cert=cert, key=key, ca=cluster_ca),
        )
        server = busway.serve(
            *(addresses or [DEFAULT_URL]),
            name=name,
            settings=Settings(**limits),
            tls=busway.TLS(cert=cert, key=key, ca=ca) if secure else None,
            fields=field_flags.fields(field),
            data=data,
            stores=_stores(store),
            cluster=member,
            insecure=insecure,
            users=users,
            http=_http(http, cors=http_cors, hosts=http_host, keys=http_keys, body=http_body),
        )
    except (ValueError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    terminal.run(lambda: run(server, member, data, seconds, json=json, quiet=quiet or log_format == "json"))


def _stores(given: list[str] | None) -> dict[str, str]:
    """Return the database URLs of --store by name."""
    stores: dict[str, str] = {}
    for text in given or ():
        name, url = store_of(text)
        if name in stores:
            raise ValueError(f"--store: the name {name!r} is given twice; give each database its own name")
        stores[name] = url
    return stores


def _http(address: str | None, **settings: Any) -> busway.Http | None:
    """Return the settings of the JSON door, or None without --http."""
    chosen = {name: value for name, value in settings.items() if value is not None}
    if address is None:
        if chosen:
            raise ValueError(
                "--http-cors, --http-host, --http-keys and --http-body are for the JSON door: give --http HOST:PORT"
            )
        return None
    return busway.Http(address=address, **chosen)
