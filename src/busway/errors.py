"""Every error Busway raises, sorted by what the caller can do about it.

::

    BusError                        .code, .reason
    ├── Closed                      this bus, subscription or service has ended: make a new one
    │   └── Forked                  it belongs to the parent process: connect again in the child
    ├── Disconnected                the connection is gone: wait for the event "resumed", or try again
    │   └── ConnectFailed           none of the servers could be reached
    ├── ListenFailed                a server can't listen on this address
    ├── DataFailed                  a server can't use this data folder
    ├── MountFailed                 the bus can't be mounted on this folder
    ├── StoreFailed                 the broker could not store it (a full disk: code NO_SPACE or STORE_FAILED, a database that is gone): try again later
    ├── Timeout                     (also TimeoutError) it took too long
    ├── NoResponders                nobody serves this topic
    │   └── NoConsumers             nobody took the push
    ├── ServiceError                the request reached a service and failed there
    │   ├── HandlerError            .code, .details; the service raised; the reason is its text
    │   └── ServiceGone             the service's connection ended before it replied
    ├── Rejected                    the broker said no: change the call
    │   ├── InvalidTopic            (also ValueError)
    │   │   └── InvalidPattern
    │   ├── InvalidFields           (also ValueError) .name; a field that can't be sent
    │   ├── InvalidRule             (also ValueError) .name; a rule of a subscription that can't be asked
    │   ├── ServiceTaken            somebody else serves this topic
    │   ├── OutOfRange              (also ValueError) the stream has no such offset
    │   ├── AckLate                 the message had gone to somebody else, or is done already
    │   ├── LimitExceeded           larger, longer or more than the broker allows
    │   └── Forbidden               reserved, not allowed, or credentials refused
    ├── Reject                      raised by a handler of a channel: the message becomes a dead letter at once
    ├── SlowConsumer                .missed; too slow under the policy "disconnect"
    ├── PayloadError                (also ValueError) .topic, .field, .position; a payload that doesn't fit its type, or is not JSON
    └── ProtocolError               the rules of the wire were broken
        ├── LocalProtocolError      by this program
        └── RemoteProtocolError     by the other side

The codes are those of the wire protocol; `from_code` finds the class of one.
"""

# ruff: noqa: N818, the names say what happened

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from busway.positions import Position


class Code(IntEnum):
    """The protocol's table of error codes."""

    OK = 0
    PROTOCOL = 1
    VERSION = 2
    FRAME_TOO_LARGE = 3
    HANDSHAKE = 4
    UNAUTHORIZED = 5
    IDLE = 6
    SLOW_CONSUMER = 7
    SESSION_TAKEN = 8
    GOING_AWAY = 9
    TOO_MANY_CONNECTIONS = 10
    CLUSTER = 11
    DUPLICATE_NODE = 12
    LINKED = 13
    SESSION_SECRET = 14
    INVALID_TOPIC = 20
    INVALID_PATTERN = 21
    TOPIC_TOO_LONG = 22
    WILDCARD = 23
    RESERVED = 24
    FIELDS_TOO_LARGE = 25
    INVALID_RULE = 26
    INVALID_FIELDS = 27
    TOO_COMPLEX = 29
    TOO_MANY_SUBSCRIPTIONS = 30
    DUPLICATE = 31
    UNKNOWN = 32
    TOO_MANY_KEPT = 33
    STORE_FAILED = 34
    NO_STREAM = 35
    NO_CHANNEL = 36
    TOO_OLD = 37
    CHANNEL_TAKEN = 38
    INVALID_SETTING = 39
    NO_RESPONDERS = 40
    SERVICE_TAKEN = 41
    SERVICE_GONE = 42
    HANDLER_ERROR = 43
    NO_CONSUMER = 44
    TOO_MANY_PENDING = 45
    REFUSED = 46
    ACK_LATE = 47
    OUT_OF_RANGE = 48
    TOO_MANY_STREAMS = 49
    NO_SPACE = 50
    FORBIDDEN = 60

    @property
    def survives(self) -> bool:
        """Whether the connection goes on after this error."""
        return self == Code.OK or self >= Code.INVALID_TOPIC


class BusError(Exception):
    """The root. `code` is the one of the wire (0 where the error never crossed it), `reason` a sentence."""

    default: ClassVar[int] = Code.OK

    def __init__(self, reason: str = "", *, code: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = self.default if code is None else code

    def __str__(self) -> str:
        return self.reason or type(self).__name__


class Closed(BusError):
    pass


class Forked(Closed):
    pass


class Disconnected(BusError):
    pass


class ConnectFailed(Disconnected):
    pass


class ListenFailed(BusError):
    pass


class DataFailed(BusError):
    pass


class MountFailed(BusError):
    pass


class StoreFailed(BusError):
    default = Code.STORE_FAILED


class Timeout(BusError, TimeoutError):
    pass


class NoResponders(BusError):
    default = Code.NO_RESPONDERS


class NoConsumers(NoResponders):
    default = Code.NO_CONSUMER


class ServiceError(BusError):
    default = Code.REFUSED


class HandlerError(ServiceError):
    """A service raised. A handler raises it itself to choose what the requester gets.

    ::

        raise busway.HandlerError("no such account", code="no_account", details={"account": 7})

    `code` is the service's own, a text; if the service named none it is the name of the exception that the handler raised, or
    Code.HANDLER_ERROR. `details` is a map of whatever fields can hold, empty if there is nothing to say.
    """

    default = Code.HANDLER_ERROR
    code: int | str  # type: ignore[assignment]  # the service's own, where that of other errors is the broker's

    def __init__(
        self, reason: str = "", *, code: int | str | None = None, details: "Mapping[str, Any] | None" = None
    ) -> None:
        super().__init__(reason)
        self.code = self.default if code is None else code
        self.details: dict[str, Any] = {} if details is None else dict(details)


class ServiceGone(ServiceError):
    default = Code.SERVICE_GONE


class Rejected(BusError):
    default = Code.REFUSED


class InvalidTopic(Rejected, ValueError):
    default = Code.INVALID_TOPIC


class InvalidPattern(InvalidTopic):
    default = Code.INVALID_PATTERN


class InvalidFields(Rejected, ValueError):
    """`name` is the field's, empty if it is unknown or the fields as a whole are wrong."""

    default = Code.INVALID_FIELDS

    def __init__(self, reason: str = "", *, name: str = "", code: int | None = None) -> None:
        super().__init__(reason, code=code)
        self.name = name


class InvalidRule(Rejected, ValueError):
    """`name` is that of the rule's field, empty if it is unknown or the rules as a whole are wrong."""

    default = Code.INVALID_RULE

    def __init__(self, reason: str = "", *, name: str = "", code: int | None = None) -> None:
        super().__init__(reason, code=code)
        self.name = name


class ServiceTaken(Rejected):
    default = Code.SERVICE_TAKEN


class OutOfRange(Rejected, ValueError):
    default = Code.OUT_OF_RANGE


class AckLate(Rejected):
    default = Code.ACK_LATE


class LimitExceeded(Rejected):
    default = Code.FRAME_TOO_LARGE


class Forbidden(Rejected):
    default = Code.FORBIDDEN


class Reject(BusError):
    """Raised by a handler of a channel: the message becomes a dead letter at once, with this reason."""


class SlowConsumer(BusError):
    default = Code.SLOW_CONSUMER

    def __init__(self, reason: str = "", *, missed: int = 0, code: int | None = None) -> None:
        super().__init__(reason, code=code)
        self.missed = missed


class PayloadError(BusError, ValueError):
    """`topic` and `position` are those of the message; the position is None if it is not stored, or not known."""

    def __init__(self, topic: str, field: str = "", reason: str = "", position: "Position | None" = None) -> None:
        super().__init__(reason)
        self.args = (topic, field, reason, position)
        self.topic = topic
        self.field = field
        self.position = position

    @property
    def brief(self) -> str:
        """The field and what is wrong with it: `$.amount: expected int, got str`."""
        path = f"${'' if self.field.startswith('[') else '.'}{self.field}" if self.field else "$"
        reason = self.reason.replace("`", "")
        return f"{path}: {reason[:1].lower()}{reason[1:]}"

    def __str__(self) -> str:
        place = f"field {self.field!r} of " if self.field else ""
        source = f"a message on topic {self.topic!r}" if self.topic else "a payload"
        stored = f" (position {self.position})" if self.position is not None else ""
        return f"{place}{source}{stored}: {self.reason}"


class ProtocolError(BusError):
    default = Code.PROTOCOL


class LocalProtocolError(ProtocolError):
    pass


class RemoteProtocolError(ProtocolError):
    pass


_CLASSES: dict[int, type[BusError]] = {
    Code.PROTOCOL: RemoteProtocolError,
    Code.VERSION: Rejected,
    Code.FRAME_TOO_LARGE: LimitExceeded,
    Code.HANDSHAKE: Rejected,
    Code.UNAUTHORIZED: Forbidden,
    Code.IDLE: Disconnected,
    Code.SLOW_CONSUMER: SlowConsumer,
    Code.SESSION_TAKEN: Disconnected,
    Code.GOING_AWAY: Disconnected,
    Code.TOO_MANY_CONNECTIONS: LimitExceeded,
    Code.CLUSTER: Rejected,
    Code.DUPLICATE_NODE: Rejected,
    Code.LINKED: Disconnected,
    Code.SESSION_SECRET: Forbidden,
    Code.INVALID_TOPIC: InvalidTopic,
    Code.INVALID_PATTERN: InvalidPattern,
    Code.TOPIC_TOO_LONG: LimitExceeded,
    Code.WILDCARD: InvalidTopic,
    Code.RESERVED: Forbidden,
    Code.FIELDS_TOO_LARGE: LimitExceeded,
    Code.INVALID_RULE: InvalidRule,
    Code.INVALID_FIELDS: InvalidFields,
    Code.TOO_COMPLEX: LimitExceeded,
    Code.TOO_MANY_SUBSCRIPTIONS: LimitExceeded,
    Code.DUPLICATE: Rejected,
    Code.UNKNOWN: Rejected,
    Code.TOO_MANY_KEPT: LimitExceeded,
    Code.STORE_FAILED: StoreFailed,
    Code.NO_SPACE: StoreFailed,
    Code.NO_STREAM: Rejected,
    Code.NO_CHANNEL: Rejected,
    Code.TOO_OLD: Rejected,
    Code.CHANNEL_TAKEN: Rejected,
    Code.OUT_OF_RANGE: OutOfRange,
    Code.TOO_MANY_STREAMS: LimitExceeded,
    Code.ACK_LATE: AckLate,
    Code.INVALID_SETTING: Rejected,
    Code.NO_RESPONDERS: NoResponders,
    Code.SERVICE_TAKEN: ServiceTaken,
    Code.SERVICE_GONE: ServiceGone,
    Code.HANDLER_ERROR: HandlerError,
    Code.NO_CONSUMER: NoConsumers,
    Code.TOO_MANY_PENDING: LimitExceeded,
    Code.REFUSED: ServiceError,
    Code.FORBIDDEN: Forbidden,
}


def from_reply(code: int, reason: str, fields: "Mapping[str, Any]") -> BusError:
    """The error of a REPLY: that of its code; what the service raised has the code and the details of the fields."""
    if code != Code.HANDLER_ERROR:
        return from_code(code, reason)
    own, details = fields.get("code"), fields.get("details")
    return HandlerError(
        reason, code=own if isinstance(own, str) else None, details=details if isinstance(details, dict) else None
    )


def from_code(code: int, reason: str) -> BusError:
    """The error that a code of the wire stands for; a code this version doesn't know is a plain BusError."""
    return _CLASSES.get(code, BusError)(reason, code=code)
