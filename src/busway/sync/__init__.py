"""The blocking API of Busway: `busway.sync.connect` and `busway.sync.serve`, with the names of the asyncio API.

::

    with busway.sync.connect("tcp://127.0.0.1:7420") as bus, bus.subscribe("price/**") as prices:
        for message in prices:
            print(message.topic, message.payload)
"""

from functools import partial
from typing import Unpack

from busway.client.bus import ConnectOptions, connect as _connect
from busway.common.options import takes_options
from busway.gateway.json.config import Http
from busway.gateway.serve import ServerOptions, serve as _serve
from busway.sync.bus import Bus
from busway.sync.channel import Channel
from busway.sync.events import Events
from busway.sync.generated.requests import Gathering, Request, TypedRequest
from busway.sync.generated.stream import Stream
from busway.sync.generated.typed_channel import Delivered, TypedChannel
from busway.sync.server import Server
from busway.sync.service import Service
from busway.sync.subscription import Subscription

__all__ = [
    "Bus",
    "Channel",
    "Delivered",
    "Events",
    "Gathering",
    "Request",
    "Server",
    "Service",
    "Stream",
    "Subscription",
    "TypedChannel",
    "TypedRequest",
    "connect",
    "serve",
]


@takes_options(_serve)
def serve(*addresses: str, http: str | Http | None = None, **options: Unpack[ServerOptions]) -> Server:
    """Start a broker on these addresses and in memory, with the arguments of busway.serve()."""
    return Server(partial(_serve, *addresses, http=http, **options))


@takes_options(_connect)
def connect(*urls: str, **options: Unpack[ConnectOptions]) -> Bus:
    """Connect to the first of these addresses that answers, with the arguments of busway.connect().

    `on_error` is called in the bus's own thread and must not use the bus.
    """
    return Bus(partial(_connect, *urls, **options))
