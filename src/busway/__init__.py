"""Busway: one message bus for Python programs, in one process, across the processes of a host, and across hosts."""

from busway._core import __version__, matches
from busway.backoff import Backoff
from busway.broker import Server
from busway.client import Bus, Event, EventStream, Gathering, Request, Service, Subscription, connect
from busway.client.channels.channel import Channel
from busway.client.streams.stream import Stream
from busway.client.typed.protocol import Protocol, Received, WithReply, decode, encode, protocol
from busway.client.typed_wrappers.channel import Delivered, TypedChannel
from busway.client.typed_wrappers.wrappers import TypedRequest, TypedService, TypedSubscription
from busway.cluster.config import Cluster
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import (
    AckLate,
    BusError,
    Closed,
    ConnectFailed,
    DataFailed,
    Disconnected,
    Forbidden,
    Forked,
    HandlerError,
    InvalidFields,
    InvalidPattern,
    InvalidRule,
    InvalidTopic,
    LimitExceeded,
    ListenFailed,
    LocalProtocolError,
    MountFailed,
    NoConsumers,
    NoResponders,
    OutOfRange,
    PayloadError,
    ProtocolError,
    Reject,
    Rejected,
    RemoteProtocolError,
    ServiceError,
    ServiceGone,
    ServiceTaken,
    SlowConsumer,
    StoreFailed,
    Timeout,
)
from busway.fields import ANY, Expr, expr
from busway.gateway.json.config import Http
from busway.gateway.serve import serve
from busway.message import Failed, Message, Replies
from busway.positions import Placed, Position, Positions
from busway.runtime import run
from busway.settings import TLS, Buffer, Caller, Offline, Policy, Scope, Settings
from busway.streams import ChannelInfo, ChannelPart, StoredTopic, StreamConfig, StreamInfo, StreamPart

__all__ = [
    "ANY",
    "TLS",
    "AckLate",
    "Backoff",
    "Buffer",
    "Bus",
    "BusError",
    "Caller",
    "Channel",
    "ChannelInfo",
    "ChannelPart",
    "Closed",
    "Cluster",
    "ConnectFailed",
    "DataFailed",
    "DeadLetter",
    "Delivered",
    "Disconnected",
    "Event",
    "EventStream",
    "Expr",
    "Failed",
    "Forbidden",
    "Forked",
    "Gathering",
    "HandlerError",
    "Http",
    "InvalidFields",
    "InvalidPattern",
    "InvalidRule",
    "InvalidTopic",
    "LimitExceeded",
    "ListenFailed",
    "LocalProtocolError",
    "Message",
    "MountFailed",
    "NoConsumers",
    "NoResponders",
    "Offline",
    "OutOfRange",
    "PayloadError",
    "Placed",
    "Policy",
    "Position",
    "Positions",
    "Protocol",
    "ProtocolError",
    "Received",
    "Redrive",
    "Reject",
    "Rejected",
    "RemoteProtocolError",
    "Replies",
    "Request",
    "Scope",
    "Server",
    "Service",
    "ServiceError",
    "ServiceGone",
    "ServiceTaken",
    "Settings",
    "SlowConsumer",
    "StoreFailed",
    "StoredTopic",
    "Stream",
    "StreamConfig",
    "StreamInfo",
    "StreamPart",
    "Subscription",
    "Timeout",
    "TypedChannel",
    "TypedRequest",
    "TypedService",
    "TypedSubscription",
    "WithReply",
    "__version__",
    "connect",
    "decode",
    "encode",
    "expr",
    "matches",
    "protocol",
    "run",
    "serve",
]


_MODULES = frozenset({"errors", "fuse", "settings", "spark", "sync", "testing"})
"""Public submodules."""


def __dir__() -> list[str]:
    """The public names: those of `__all__`, and the public submodules that are imported."""
    return sorted({*__all__, *(_MODULES & globals().keys())})
