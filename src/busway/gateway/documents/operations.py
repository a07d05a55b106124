"""Table of the HTTP interface: the commands with their fields, and every path with its answers. Values only.

`openapi.py` builds the OpenAPI document from this table alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from busway.gateway.cloudevents.event import BATCH, STRUCTURED

Schema: TypeAlias = Mapping[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NAME: Final[Schema] = {"type": "string", "minLength": 1}
_FRAGMENT: Final = r"[^/*\u0000-\u001f\u007f-\u009f]+"
TOPIC: Final[Schema] = {"type": "string", "maxLength": 255, "pattern": f"^{_FRAGMENT}(/{_FRAGMENT})*$"}
"""A topic. The length limit of topics is higher, and counts bytes."""
PART: Final[Schema] = {"type": "string", "maxLength": 60, "pattern": f"^{_FRAGMENT}$"}
_ONE: Final = rf"({_FRAGMENT}|\*\*?)"
PATTERN: Final[Schema] = {"type": "string", "maxLength": 200, "pattern": f"^{_ONE}(/{_ONE})*$"}
CHANNEL: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 64}
NUMBER: Final[Schema] = {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[0-9]{1,18}$"}]}
SECONDS: Final[Schema] = {
    "oneOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,6})?$"}]
}
FLAG: Final[Schema] = {"enum": [True, False, "true", "false"]}
IDENT: Final[Schema] = {"type": ["string", "number", "null"]}
ANY: Final[Schema] = {}
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Field:
    """A control field of a command; `headed` is its name in the headers form, if that differs."""

    name: str
    schema: Schema
    text: str
    required: bool = False
    headed: str = ""

    @property
    def name_in_headers(self) -> str:
        """The name of the field in the headers form."""
        return self.headed or self.name


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its fields."""

    name: str
    text: str
    fields: tuple[Field, ...] = ()
    body: str = ""
    """Description of the body; empty if the command has none."""
    answer: str = ""
    """Description of the body of a successful answer."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    where: Literal["path", "query", "header"]
    schema: Schema
    text: str

    @property
    def required(self) -> bool:
        """Whether the parameter is required."""
        return self.where == "path"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of an operation."""

    status: str
    text: str
    content: Mapping[str, Schema]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path."""

    method: Literal["get", "post"]
    path: str
    id: str
    tag: str
    text: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Schema] | None = None


_MQ: Final = Field("mq", TOPIC, "Name of the queue, which is also the topic of its messages.", required=True)
_CHANNEL: Final = Field("channel", CHANNEL, "Name of the channel.", required=True)
_ACK: Final = Field("ack", FLAG, "false: no answer if the command succeeds.")
COMMON: Final = (
    Field("id", IDENT, "Repeated in the answer; generated if it is missing."),
    Field("apiKey", TEXT, "The key of the client; required if the server has keys."),
    Field("signature", TEXT, "HMAC-SHA256 of the request in hexadecimal digits."),
    Field(
        "timestamp",
        SECONDS,
        "Time of the signature, in seconds or milliseconds since 1970; required for keys with a window.",
    ),
)
"""Fields that every command may have."""

COMMANDS: Final = (
    Command(
        "pub",
        "Store a message in a queue.",
        (_MQ, _ACK, Field("topic", TEXT, "The tag that filters of subscribers match.", headed="tag")),
        body="The message: any JSON value.",
        answer="`OK, PUB (mq=…)`",
    ),
    Command(
        "sub",
        "Subscribe to the messages of a channel, over a WebSocket, over HTTP or as server-sent events.",
        (
            _MQ,
            _CHANNEL,
            _ACK,
            Field("window", NUMBER, "Number of messages until the next `sub` allows more."),
            Field("topic", TEXT, "Filter of the messages: `a.*.c;b.#`.", headed="filter"),
        ),
        answer="`OK, SUB (mq=…,channel=…)`, then the messages",
    ),
    Command(
        "take",
        "Take messages of a channel.",
        (
            _MQ,
            _CHANNEL,
            Field("window", NUMBER, "Largest number of messages; default 1."),
            Field("timeout", SECONDS, "Seconds to wait for the first message."),
        ),
        answer="a list of messages; with status 604 an empty list",
    ),
    Command(
        "create",
        "Create or change a queue, and a channel of it.",
        (
            _MQ,
            Field(
                "mqType",
                {"enum": ["memory", "disk", "db"]},
                "Store of the messages; default: disk if the server has a data folder, else memory.",
            ),
            Field("mqMask", NUMBER, "1: removed with its last subscriber; 2: one subscriber at a time; 8: paused."),
            Field("channel", CHANNEL, "A channel to create or change, too."),
            Field("channelMask", NUMBER, "Like mqMask, for the channel."),
            Field("offset", NUMBER, "The position of the channel."),
            Field("checksum", TEXT, "The id of the message that must be at this offset."),
            Field("topic", TEXT, "The filter of the channel.", headed="filter"),
        ),
        answer="`OK, CREATE (mq=…)`",
    ),
    Command(
        "remove",
        "Remove a channel, or a queue with its messages and channels.",
        (_MQ, Field("channel", CHANNEL, "The channel to remove; without it the queue is removed.")),
        answer="`OK, REMOVE (mq=…)`",
    ),
    Command(
        "query",
        "Describe a queue or a channel.",
        (_MQ, Field("channel", CHANNEL, "The channel to describe.")),
        answer="name, type, mask, size and channels of the queue, or name, mask, filter and offset of the channel",
    ),
    Command("ping", "A heartbeat. Over a WebSocket it gets an answer only if it has an `id`.", answer="`OK, PING`"),
    Command(
        "route",
        "Answer a call that arrived as a message of a queue.",
        (
            Field("recver", NAME, "The `sender` of the message.", required=True, headed="target"),
            Field("status", NUMBER, "The status of the answer."),
            Field("ack", FLAG, "true: this command gets an answer, too."),
        ),
        body="The body of the answer for the caller.",
        answer="nothing, or `OK`",
    ),
    Command(
        "bind",
        "Bind URLs: their calls become messages of the queue.",
        (_MQ, Field("clearBind", FLAG, "true: end all earlier bindings; default true.")),
        body="A list of `{url, mq}`.",
        answer="`OK, BIND URL (mq=…)`",
    ),
)

CALL: Final = Command(
    "call",
    "Call a method of a service.",
    (
        Field("method", NAME, "The method.", required=True),
        Field("module", TEXT, "The module of the method."),
        Field("params", {"type": ["array", "object", "null"]}, "The arguments."),
        Field("mq", TOPIC, "The queue or topic of the service."),
        Field("timeout", SECONDS, "Seconds within which the service must answer."),
    ),
    answer="the result of the method; with status 500 its error",
)
"""A request without `cmd`."""


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_BODY: Final[Schema] = {"description": "In the headers form: the body alone, with the control fields in HTTP headers."}
REPLY: Final[Schema] = {"anyOf": [_ref("FlatReply"), _BODY]}
_REPLY: Final[Mapping[str, Schema]] = {JSON: REPLY, "text/plain": TEXT}
_ERROR: Final[Mapping[str, Schema]] = {JSON: _ref("Error")}
_HEALTH: Final[Mapping[str, Schema]] = {JSON: _ref("Health")}

_UNSIGNED: Final = Answer("403", "The key is missing or wrong.", {JSON: _ref("FlatReply")})
_DONE: Final = Answer(
    "200",
    "Success. The answer to a `sub` does not end: JSON lines, or server-sent events if the client accepts them.",
    {**_REPLY, "application/x-ndjson": TEXT, "text/event-stream": TEXT},
)
_REFUSALS: Final = (
    Answer("400", "The request is invalid.", _REPLY),
    Answer("403", "The key is missing or wrong, or does not allow the command.", _REPLY),
    Answer("404", "The queue, channel, command or service does not exist.", _REPLY),
    Answer("408", "The request did not arrive in time.", _REPLY),
    Answer("413", "The request is too large.", _REPLY),
    Answer("421", "The request is for another host.", _REPLY),
    Answer("500", "The command or the called service failed.", _REPLY),
    Answer("502", "The service disconnected before it answered.", _REPLY),
    Answer("503", "The bus is temporarily unavailable.", _REPLY),
    Answer("504", "The request timed out.", _REPLY),
    Answer("default", "604: the channel has no messages to take.", _REPLY),
)
_EVENT_REFUSALS: Final = tuple(
    Answer(status, text, _ERROR)
    for status, text in (
        ("400", "The event or the topic is invalid."),
        ("403", "The key is missing or wrong, or does not allow the topic."),
        ("408", "The request did not arrive in time."),
        ("413", "The request, the topic or a field is too large."),
        ("421", "The request is for another host."),
        ("503", "The bus is unavailable, or can't store the event."),
        ("504", "The request timed out."),
    )
)


def _events(event: Schema) -> Mapping[str, Schema]:
    return {STRUCTURED: event, BATCH: {"type": "array", "items": event}}


_PUBLISHED: Final = (
    Answer("200", "The number of published events, with `durable` also their positions.", {JSON: _ref("Published")}),
    *_EVENT_REFUSALS,
    Answer("415", "The format of the events is not supported.", _ERROR),
)
_DURABLE: Final = Parameter(
    "durable", "query", {"enum": ["0", "1", "true", "false"]}, "1: answer when the events are stored."
)
_TOPIC: Final = Parameter("topic", "path", TOPIC, "A topic; its slashes need no escape.")
_CMD: Final = Field("cmd", {"enum": [command.name for command in COMMANDS]}, "The command.")
_QUERY: Final = tuple(
    Parameter(field.name, "query", field.schema if "enum" in field.schema else TEXT, field.text)
    for field in {
        field.name: field
        for command in COMMANDS
        for field in (_CMD, *command.fields, Field("body", TEXT, "The message."), *COMMON)
    }.values()
)
_PATH: Final = (
    Parameter("mq", "path", PART, "The queue, or the first part of the topic, of the service."),
    Parameter("module", "path", PART, "The module."),
    Parameter("method", "path", PART, "The method."),
)
_PARAMS: Final = Parameter("params", "path", PART, "Arguments, with slashes between them: each is a text.")
_RETURNED: Final[Mapping[str, Schema]] = {JSON: ANY, "text/plain": TEXT, "*/*": ANY}
_CALLED: Final = (
    Answer("200", "The result of the method: the body alone, with the content type of the service.", _RETURNED),
    *(Answer(refusal.status, refusal.text, _RETURNED) for refusal in _REFUSALS),
)
_ARGUMENTS: Final[Mapping[str, Schema]] = {JSON: {"type": "array"}}

OPERATIONS: Final = (
    Operation(
        "post",
        "/",
        "command",
        "commands",
        "A command, or a call of a service, as a JSON object in either form, at any path. The answer has that form.",
        (_DONE, *_REFUSALS),
        body={JSON: {"oneOf": [_ref("FlatRequest"), _ref("HeadersRequest")]}},
    ),
    Operation(
        "get",
        "/",
        "commandByUrl",
        "commands",
        "A flat command as the query of a URL: `/?cmd=pub&mq=orders&body=hello`.",
        (_DONE, *_REFUSALS),
        _QUERY,
    ),
    Operation("get", "/{mq}/{module}/{method}", "call", "services", "Call a method without arguments.", _CALLED, _PATH),
    Operation(
        "post",
        "/{mq}/{module}/{method}",
        "callWithBody",
        "services",
        "Call a method; the body is the list of its arguments.",
        _CALLED,
        _PATH,
        _ARGUMENTS,
    ),
    Operation(
        "get",
        "/{mq}/{module}/{method}/{params}",
        "callWithPath",
        "services",
        "Call a method with the rest of the path as its arguments.",
        _CALLED,
        (*_PATH, _PARAMS),
    ),
    Operation(
        "post",
        "/events",
        "publishEvents",
        "events",
        "Publish CloudEvents, each on the topic that is its subject: one in structured mode, a batch, or one in binary "
        "mode with its attributes as headers `ce-…` and its data as the body.",
        _PUBLISHED,
        (_DURABLE,),
        _events({"allOf": [_ref("Event"), {"required": ["subject"], "properties": {"subject": TOPIC}}]}),
    ),
    Operation(
        "post",
        "/events/{topic}",
        "publishEventsOnTopic",
        "events",
        "Publish CloudEvents on one topic, in any of the three modes.",
        _PUBLISHED,
        (_TOPIC, _DURABLE),
        _events(_ref("Event")),
    ),
    Operation(
        "get",
        "/events/{topic}",
        "readEvents",
        "events",
        "Messages as CloudEvents: an endless stream of server-sent events, or with `max` or `wait` one batch.",
        (
            Answer(
                "200",
                "Events.",
                {"text/event-stream": TEXT, BATCH: _events(_ref("Event"))[BATCH]},
            ),
            *_EVENT_REFUSALS,
        ),
        (
            Parameter("topic", "path", PATTERN, "A topic or pattern: `orders/*`, `orders/**`."),
            Parameter(
                "since",
                "query",
                {"type": "string", "examples": ["all", "1h", "2026-11-05T17:31:00Z"]},
                "Send stored messages first, from this start: `all`, `1h`, a time, a position.",
            ),
            Parameter(
                "max", "query", {"type": "integer", "minimum": 1, "maximum": 10_000}, "Largest number of events."
            ),
            Parameter(
                "wait",
                "query",
                {"type": "number", "minimum": 0, "maximum": 300},
                "Seconds to wait for the first event; the batch includes events that follow within a moment.",
            ),
            Parameter("Last-Event-ID", "header", TEXT, "Like `since`; a browser sends it when it reconnects."),
        ),
    ),
    Operation(
        "get",
        "/healthz",
        "health",
        "operation",
        "Liveness of the process.",
        (
            Answer("200", "The process is healthy.", _HEALTH),
            Answer("503", "The event loop is too slow.", _HEALTH),
        ),
    ),
    Operation(
        "get",
        "/readyz",
        "readiness",
        "operation",
        "Readiness for clients.",
        (
            Answer("200", "The server is ready.", _HEALTH),
            Answer("503", "The server is not ready; the body has the reasons.", _HEALTH),
        ),
    ),
    Operation(
        "get",
        "/metrics",
        "metrics",
        "operation",
        "Metrics for Prometheus.",
        (Answer("200", "Text or OpenMetrics.", {"text/plain": TEXT, "application/openmetrics-text": TEXT}),),
    ),
    Operation(
        "get",
        "/openapi.json",
        "openapi",
        "operation",
        "This document.",
        (Answer("200", "OpenAPI 3.1.", {JSON: {"type": "object"}}),),
    ),
    Operation(
        "get",
        "/asyncapi.json",
        "asyncapi",
        "operation",
        "The bus as an AsyncAPI document: streams, topics, services.",
        (Answer("200", "AsyncAPI 3.0.", {JSON: {"type": "object"}}), _UNSIGNED),
    ),
    Operation(
        "get",
        "/services",
        "services",
        "operation",
        "Modules and methods that can be called, as a page or as JSON.",
        (Answer("200", "Modules.", {JSON: {"type": "object"}, "text/html": TEXT}), _UNSIGNED),
    ),
)
