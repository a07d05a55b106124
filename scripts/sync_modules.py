"""The files of the blocking API that make_sync.py generates, and the asyncio classes that they come from."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Class:
    """One class to generate."""

    name: str
    source: str
    """The module of the asyncio class, and its name behind a colon; the inner object has that type."""
    doc: str = ""
    """The docstring; empty: that of the asyncio class."""
    bases: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    """Sources of the members; empty: the class itself."""
    only: tuple[str, ...] = ()
    """The members; empty: all public ones but those of `without`."""
    without: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    """Attributes of the asyncio object, with their types, that become properties."""
    constants: dict[str, str] = field(default_factory=dict)
    """Attributes of the asyncio object that never change, with their types."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Other names of methods."""
    rewritten: bool = False
    """Whether the methods have the code of the original, without `await`."""

    def has(self, name: str) -> bool:
        """Whether the class gets this method of the original."""
        if self.only:
            return name in self.only
        return name not in {*self.without, *self.constants} and (self.rewritten or not name.startswith("_"))


class Module:
    """One file to generate."""

    def __init__(self, name: str, doc: str, *classes: Class) -> None:
        self.name = name
        self.doc = doc
        self.classes = classes


_CLIENT: Final = "busway.client"
_SERVICES: Final = f"{_CLIENT}.services"
_TYPED: Final = f"{_CLIENT}.typed_wrappers"
MODULES: Final = (
    Module(
        "bus",
        "The verbs of the blocking bus that publish, and its properties.",
        Class(
            "BusVerbs",
            f"{_CLIENT}.bus:Bus",
            "Verbs of the blocking Bus, which inherits them.",
            members=(f"{_CLIENT}.bus:Bus", "busway._core:Publisher"),
            without=("close", "drain", "open"),
            attributes={"name": "str"},
            aliases={"send": "publish"},
        ),
    ),
    Module(
        "requests",
        "Requests and retained messages of the blocking API.",
        Class(
            "Request",
            f"{_SERVICES}.service:Request",
            bases=("Wrapper[AsyncRequest]", "MessageProperties"),
            constants={"message": "Message"},
        ),
        Class(
            "TypedRequest",
            f"{_TYPED}.wrappers:TypedRequest",
            bases=("Wrapper[AsyncTypedRequest[T]]",),
            constants={"value": "T"},
        ),
        Class(
            "Gathering",
            f"{_SERVICES}.gather:Gathering",
            "Iterator over the replies to one request. The end of its `with`, or close(), cancels the missing replies.",
            bases=("Results[AsyncGathering[M], M]", "Closable"),
            only=("all", "aclose"),
            attributes={"failed": "list[Failed]"},
        ),
        Class(
            "RequestVerbs",
            f"{_CLIENT}.bus:Bus",
            "Verbs of the blocking Bus, which inherits them.",
            members=(f"{_SERVICES}.requests:RequestVerbs", f"{_CLIENT}.retained:RetainedVerbs"),
        ),
    ),
    Module(
        "stream",
        "Streams of the blocking API.",
        Class("Stream", f"{_CLIENT}.streams.stream:Stream", attributes={"lost": "int"}),
        Class(
            "StreamVerbs",
            f"{_CLIENT}.bus:Bus",
            "Verbs of the blocking Bus, which inherits them.",
            members=(f"{_CLIENT}.streams.stream:StreamVerbs",),
        ),
    ),
    Module(
        "channel",
        "Management of channels, and acknowledgements, in the blocking API.",
        Class(
            "ConsumerVerbs",
            f"{_CLIENT}.channels.channel:Channel",
            "Verbs of the blocking Channel, which inherits them.",
            only=("ack", "nack", "reject", "extend", "seek", "dead", "redrive", "pause", "resume", "info"),
        ),
        Class(
            "ChannelVerbs",
            f"{_CLIENT}.bus:Bus",
            "Verbs of the blocking Bus, which inherits them.",
            members=(f"{_CLIENT}.channels.admin:ChannelVerbs",),
            without=("channel",),
        ),
    ),
    Module(
        "typed_channel",
        "Typed channels of the blocking API.",
        Class("Delivered", f"{_TYPED}.channel:Delivered", rewritten=True),
        Class(
            "TypedChannel",
            f"{_TYPED}.channel:TypedChannel",
            bases=("Closable", "ChannelProperties", "Generic[T]"),
            members=(f"{_TYPED}.channel:TypedChannel", f"{_TYPED}.wrappers:Wrapper"),
            without=("start", "__aenter__", "__aexit__", "__await__"),
            rewritten=True,
        ),
    ),
    Module(
        "feed",
        "Bulk feeds of the blocking API.",
        Class("Feed", f"{_CLIENT}.durable.feed:Feed"),
    ),
    Module(
        "server",
        "The properties and counters of a blocking server.",
        Class(
            "ServerStatus",
            "busway.broker.server:Server",
            "Properties and counters of the blocking Server, which inherits them.",
            without=("connect", "serve_forever", "start", "stop"),
            attributes={"guid": "str", "name": "str", "settings": "Settings"},
        ),
    ),
)
