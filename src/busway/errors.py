"""All errors that Busway raises, grouped by what the caller can do about them.

::

    BusError                        .code, .reason
    ├── Closed                      the bus, subscription or service has ended: create a new one
    │   └── Forked                  it belongs to the parent process: connect again in the child
    ├── Disconnected                the connection is lost: wait for the event "resumed", or retry
    │   └── ConnectFailed           no server could be reached
    ├── ListenFailed                the server can't listen on this address
    ├── DataFailed                  the server can't use this data folder
    ├── MountFailed                 the bus can't be mounted on this folder
    ├── StoreFailed                 the broker could not store the message (code NO_SPACE or STORE_FAILED): retry later
    ├── Timeout                     (also TimeoutError) the call took too long
    ├── NoResponders                no service for this topic
    │   └── NoConsumers             no consumer accepted the push
    ├── ServiceError                the request reached a service and failed there
    │   ├── HandlerError            .code, .details; the service raised an error; the reason is its text
    │   └── ServiceGone             the service's connection was lost before it replied
    ├── Rejected                    the broker refused the call: change the call
    │   ├── InvalidTopic            (also ValueError)
    │   │   └── InvalidPattern
    │   ├── InvalidFields           (also ValueError) .name; a field that can't be sent
    │   ├── InvalidRule             (also ValueError) .name; a rule of a subscription that is not valid
    │   ├── ServiceTaken            another client serves this topic
    │   ├── OutOfRange              (also ValueError) the stream has no such offset
    │   ├── AckLate                 the message was already acknowledged, or redelivered to another consumer
    │   ├── LimitExceeded           a limit of the broker is exceeded
    │   └── Forbidden               reserved, not allowed, or credentials refused
    ├── Reject                      a channel's handler raises it: the message moves to the dead-letter topic at once
    ├── SlowConsumer                .missed; too slow under the policy "disconnect"
    ├── PayloadError                (also ValueError) .topic, .field, .position; a payload does not match its type
    └── ProtocolError               a violation of the wire protocol
        ├── LocalProtocolError      by this program
        └── RemoteProtocolError     by the peer

The codes are those of the wire protocol; `from_code` creates the error for a code.
"""

# ruff: noqa: N818, the names state what happened

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from busway.positions import Position


class Code(IntEnum):
    """The error codes of the wire protocol."""

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
    REVOKED = 15
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
        """True if the connection stays open after this error."""
        return self == Code.OK or self >= Code.INVALID_TOPIC


class BusError(Exception):
    """The base of all errors. `code` is the wire code, or 0 if the error was raised locally; `reason` is a sentence."""

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
    """The handler of a service raised an error. A handler raises it itself to set the code and details of its reply.

    ::

        raise busway.HandlerError("no such account", code="no_account", details={"account": 7})

    `code` is a text that the service has set, else the name of the exception that the handler raised, or
    Code.HANDLER_ERROR. `details` is a map with values that fields can hold; it may be empty.
    """

    default = Code.HANDLER_ERROR
    code: int | str  # type: ignore[assignment]  # a text of the service, while other errors have a wire code

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
    """The fields of a message are not valid. `name` is the field; empty if unknown, or if all fields together fail."""

    default = Code.INVALID_FIELDS

    def __init__(self, reason: str = "", *, name: str = "", code: int | None = None) -> None:
        super().__init__(reason, code=code)
        self.name = name


class InvalidRule(Rejected, ValueError):
    """A rule of a subscription is not valid. `name` is its field, or empty if unknown or if all rules together fail."""

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
    """A handler of a channel raises it to move the message to the dead-letter topic at once, with this reason."""


class SlowConsumer(BusError):
    default = Code.SLOW_CONSUMER

    def __init__(self, reason: str = "", *, missed: int = 0, code: int | None = None) -> None:
        super().__init__(reason, code=code)
        self.missed = missed


class PayloadError(BusError, ValueError):
    """A payload does not match its type. `topic` and `position` are the message's; an unknown position is None."""

    def __init__(self, topic: str, field: str = "", reason: str = "", position: "Position | None" = None) -> None:
        super().__init__(reason)
        self.args = (topic, field, reason, position)
        self.topic = topic
        self.field = field
        self.position = position

    @property
    def brief(self) -> str:
        """The path of the field and the problem: `$.amount: expected int, got str`."""
        path = f"${'' if self.field.startswith('[') else '.'}{self.field}" if self.field else "$"
        reason = self.reason.replace("`", "")
        if reason[1:2].islower():  # a word, not an abbreviation such as JSON
            reason = reason[0].lower() + reason[1:]
        return f"{path}: {reason}"

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
    Code.REVOKED: Disconnected,
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
    """Create the error of a REPLY frame. A HandlerError takes its code and details from the fields of the reply."""
    if code != Code.HANDLER_ERROR:
        return from_code(code, reason)
    name, details = fields.get("code"), fields.get("details")
    return HandlerError(
        reason, code=name if isinstance(name, str) else None, details=details if isinstance(details, dict) else None
    )


def from_code(code: int, reason: str) -> BusError:
    """Create the error for a wire code. A code that this version does not know becomes a plain BusError."""
    return _CLASSES.get(code, BusError)(reason, code=code)
