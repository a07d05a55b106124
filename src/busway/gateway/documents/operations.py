"""What can be done over HTTP, as a table: the commands with their fields, and every address with its answers. Values only.

The OpenAPI document is made of it, so what is not in this table is not in that.
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
"""Topics may be longer than that, in bytes."""
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
    """A control field of a command. In the headers form some have another name."""

    name: str
    schema: Schema
    text: str
    required: bool = False
    headed: str = ""

    @property
    def name_in_headers(self) -> str:
        return self.headed or self.name


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    text: str
    fields: tuple[Field, ...] = ()
    body: str = ""
    """What the body is, if it has one."""
    answer: str = ""
    """What the body of a good answer is."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    where: Literal["path", "query", "header"]
    schema: Schema
    text: str

    @property
    def required(self) -> bool:
        return self.where == "path"


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    text: str
    content: Mapping[str, Schema]


@dataclass(frozen=True, slots=True)
class Operation:
    method: Literal["get", "post"]
    path: str
    id: str
    tag: str
    text: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Schema] | None = None


_MQ: Final = Field(
    "mq", TOPIC, "Name of the queue; its messages are stored under the topic of this name.", required=True
)
_CHANNEL: Final = Field("channel", CHANNEL, "Name of the channel.", required=True)
_ACK: Final = Field("ack", FLAG, "false: the command is not answered if it succeeds.")
COMMON: Final = (
    Field("id", IDENT, "Given back in the answer; one is made if it is missing."),
    Field("apiKey", TEXT, "Whose request it is, where keys are wanted."),
    Field("signature", TEXT, "HMAC-SHA256 of the request in hexadecimal digits."),
    Field(
        "timestamp",
        SECONDS,
        "When the request was signed, in seconds or milliseconds since 1970; for keys with a window.",
    ),
)
"""What every command may have."""

COMMANDS: Final = (
    Command(
        "pub",
        "Store a message in a queue.",
        (_MQ, _ACK, Field("topic", TEXT, "What filters of subscribers look at.", headed="tag")),
        body="The message: any JSON value.",
        answer="`OK, PUB (mq=…)`",
    ),
    Command(
        "sub",
        "Get the messages of a channel as they come, over a WebSocket, over HTTP or as server-sent events.",
        (
            _MQ,
            _CHANNEL,
            _ACK,
            Field("window", NUMBER, "How many messages may come before the next `sub` allows more."),
            Field("topic", TEXT, "Which messages are wanted: `a.*.c;b.#`.", headed="filter"),
        ),
        answer="`OK, SUB (mq=…,channel=…)`, then the messages",
    ),
    Command(
        "take",
        "Take messages of a channel.",
        (
            _MQ,
            _CHANNEL,
            Field("window", NUMBER, "How many at most; 1 if it is missing."),
            Field("timeout", SECONDS, "Seconds to wait for the first one."),
        ),
        answer="a list of messages; with status 604 an empty one",
    ),
    Command(
        "create",
        "Make or change a queue, and a channel of it.",
        (
            _MQ,
            Field(
                "mqType",
                {"enum": ["memory", "disk", "db"]},
                "Where messages are stored; if it is missing, on disk where the server has a data folder, else in memory.",
            ),
            Field("mqMask", NUMBER, "1: goes with its last subscriber; 2: one subscriber at a time; 8: paused."),
            Field("channel", CHANNEL, "A channel to make or change, too."),
            Field("channelMask", NUMBER, "As mqMask, of the channel."),
            Field("offset", NUMBER, "Where the channel goes on."),
            Field("checksum", TEXT, "The id of the message that is expected at this offset."),
            Field("topic", TEXT, "A filter of the channel.", headed="filter"),
        ),
        answer="`OK, CREATE (mq=…)`",
    ),
    Command(
        "remove",
        "Remove a channel, or a queue with all that is in it.",
        (_MQ, Field("channel", CHANNEL, "The channel to remove; without it the queue is.")),
        answer="`OK, REMOVE (mq=…)`",
    ),
    Command(
        "query",
        "Look at a queue or a channel.",
        (_MQ, Field("channel", CHANNEL, "The channel to look at.")),
        answer="name, type, mask, size and channels of the queue, or name, mask, filter and offset of the channel",
    ),
    Command("ping", "A sign of life. Over a WebSocket it is answered only if it has an `id`.", answer="`OK, PING`"),
    Command(
        "route",
        "Answer a call that came as a message of a queue.",
        (
            Field("recver", NAME, "The `sender` of the message.", required=True, headed="target"),
            Field("status", NUMBER, "The status of the answer."),
            Field("ack", FLAG, "true: this command is answered, too."),
        ),
        body="What the caller gets.",
        answer="nothing, or `OK`",
    ),
    Command(
        "bind",
        "Offer URLs: calls of them become messages of the queue.",
        (_MQ, Field("clearBind", FLAG, "Whether those that were offered before are forgotten; true if it is missing.")),
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
        Field("timeout", SECONDS, "Seconds that the service has."),
    ),
    answer="what the method returned; with status 500 what it raised",
)
"""A request without `cmd`."""


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_BODY: Final[Schema] = {
    "description": "In the headers form: the body alone, its control fields are headers of the answer."
}
REPLY: Final[Schema] = {"anyOf": [_ref("FlatReply"), _BODY]}
_REPLY: Final[Mapping[str, Schema]] = {JSON: REPLY, "text/plain": TEXT}
_ERROR: Final[Mapping[str, Schema]] = {JSON: _ref("Error")}
_HEALTH: Final[Mapping[str, Schema]] = {JSON: _ref("Health")}

_UNSIGNED: Final = Answer("403", "The key is missing or wrong.", {JSON: _ref("FlatReply")})
_DONE: Final = Answer(
    "200",
    "Done. A `sub` is answered without end: lines of JSON, or server-sent events if they are accepted.",
    {**_REPLY, "application/x-ndjson": TEXT, "text/event-stream": TEXT},
)
_REFUSALS: Final = (
    Answer("400", "The request can't be understood.", _REPLY),
    Answer("403", "The key is missing or wrong, or may not do this.", _REPLY),
    Answer("404", "There is no such queue, channel, command or service.", _REPLY),
    Answer("408", "The request did not come in time.", _REPLY),
    Answer("413", "The request is too large.", _REPLY),
    Answer("421", "The request is for another host.", _REPLY),
    Answer("500", "It failed; for a call, the service did.", _REPLY),
    Answer("502", "The service went away before it answered.", _REPLY),
    Answer("503", "The bus is not there for now.", _REPLY),
    Answer("504", "It took too long.", _REPLY),
    Answer("default", "604: there are no messages to take.", _REPLY),
)
_EVENT_REFUSALS: Final = tuple(
    Answer(status, text, _ERROR)
    for status, text in (
        ("400", "What was sent is no event, or the topic is none."),
        ("403", "The key is missing or wrong, or may not use this topic."),
        ("408", "The request did not come in time."),
        ("413", "Something is too large."),
        ("421", "The request is for another host."),
        ("503", "The bus is not there, or can't store it."),
        ("504", "It took too long."),
    )
)


def _events(event: Schema) -> Mapping[str, Schema]:
    return {STRUCTURED: event, BATCH: {"type": "array", "items": event}}


_PUBLISHED: Final = (
    Answer("200", "How many were published, and with `durable` where they are stored.", {JSON: _ref("Published")}),
    *_EVENT_REFUSALS,
    Answer("415", "This format of events is not spoken here.", _ERROR),
)
_DURABLE: Final = Parameter(
    "durable", "query", {"enum": ["0", "1", "true", "false"]}, "1: answer when the events are stored."
)
_TOPIC: Final = Parameter("topic", "path", TOPIC, "A topic; slashes in it need no escape.")
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
    Answer("200", "What the method returned: the body alone, of the content type that the service gives.", _RETURNED),
    *(Answer(one.status, one.text, _RETURNED) for one in _REFUSALS),
)
_ARGUMENTS: Final[Mapping[str, Schema]] = {JSON: {"type": "array"}}

OPERATIONS: Final = (
    Operation(
        "post",
        "/",
        "command",
        "commands",
        "A command, or a call of a service, as a JSON object in either form; it is answered in the same one. Any path will do.",
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
        "Publish CloudEvents, each on the topic that is its subject: one in structured mode, a batch, or one in binary mode: with its "
        "attributes as headers `ce-…` and its data as the body.",
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
        "Messages as CloudEvents: as server-sent events without end, or with `max` or `wait` as one batch.",
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
                "From where stored messages come first: `all`, `1h`, a time, a position.",
            ),
            Parameter("max", "query", {"type": "integer", "minimum": 1, "maximum": 10_000}, "How many at most."),
            Parameter(
                "wait",
                "query",
                {"type": "number", "minimum": 0, "maximum": 300},
                "Seconds to wait for the first; what follows within a moment comes with it.",
            ),
            Parameter("Last-Event-ID", "header", TEXT, "As `since`; a browser sends it when it comes back."),
        ),
    ),
    Operation(
        "get",
        "/healthz",
        "health",
        "operation",
        "Whether the process lives.",
        (Answer("200", "It does.", _HEALTH), Answer("503", "Its event loop is too slow.", _HEALTH)),
    ),
    Operation(
        "get",
        "/readyz",
        "readiness",
        "operation",
        "Whether clients should come here.",
        (Answer("200", "They should.", _HEALTH), Answer("503", "They should not, and why.", _HEALTH)),
    ),
    Operation(
        "get",
        "/metrics",
        "metrics",
        "operation",
        "Figures for Prometheus.",
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
        "Modules and methods that can be called, to look at or as JSON.",
        (Answer("200", "Modules.", {JSON: {"type": "object"}, "text/html": TEXT}), _UNSIGNED),
    ),
)
