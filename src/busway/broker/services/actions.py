"""Values of the machine of shared requests: its actions, the requests in flight, and the attempts of providers."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

from busway.broker.flags import ERROR, FIELDS
from busway.broker.services.providers import Provider
from busway.settings import Scope


class Ask(NamedTuple):
    """Ask a provider whether it accepts this request. The answer comes by accepted()."""

    conn: int
    service: int
    call: int
    origin: int
    topic: str
    frame: bytes


class Call(NamedTuple):
    """Send the request to a provider. The reply comes by answered()."""

    conn: int
    service: int
    call: int
    origin: int
    topic: str
    frame: bytes


class Answer(NamedTuple):
    """Send an answer to the requester. Without PARTIAL in the flags it is the last one."""

    conn: int
    number: int
    flags: int
    code: int
    fields: bytes
    payload: bytes


class Failure(NamedTuple):
    """Why an attempt failed; the fields are those of the provider's reply."""

    code: int
    fields: bytes
    payload: bytes


class Willing(NamedTuple):
    """Answer another node whether a provider here accepts the request that it asked for."""

    conn: int
    number: int
    code: int


class Terms(NamedTuple):
    """Send another node, after an Ask or Call, the time limit for each of its providers."""

    conn: int
    call: int
    each: float


class Moved(NamedTuple):
    """Report to another node that its request has moved to the next provider here, whose time begins now."""

    conn: int
    number: int


class CancelCall(NamedTuple):
    """Cancel an Ask or Call at another node: its answer is not needed any more."""

    conn: int
    call: int


Action: TypeAlias = Ask | Call | Answer | Willing | Terms | Moved | CancelCall


class Phase(Enum):
    """The phase of an attempt."""

    ASKED = 1
    WILLING = 2
    AT_WORK = 3


@dataclass(slots=True, eq=False)
class Request:
    """One request on a shared service."""

    conn: int
    number: int
    topic: str
    frame: bytes
    gather: bool
    each: float
    limit: float
    deadline: float
    attempts: dict[int, "Attempt"] = field(default_factory=dict)
    willing: deque["Attempt"] = field(default_factory=deque)
    tried: set[Provider] = field(default_factory=set)
    asked: int = 0
    error: Failure | None = None
    spoken: bool = False
    """Whether the requester has got a part of an answer: then no other provider can start over."""
    over: bool = False
    scope: Scope = "global"
    """The providers that the requester accepts: local, remote or all."""
    remote: bool = False
    """Whether the request comes from a client of another node; then it goes to no third node."""
    asking: bool = False
    """Whether that node has only asked so far if a provider here accepts the request."""
    promised: bool = False
    """Whether this node has answered that a provider here accepts the request."""
    begun: bool = False
    """Whether a provider has been tried before."""

    def may_go_to(self, provider: Provider) -> bool:
        """Whether the scopes of the request and of the provider fit."""
        if self.remote:
            return not provider.remote and provider.scope != "local"
        if provider.remote:
            return self.scope != "local"
        return self.scope != "remote" and provider.scope != "remote"


@dataclass(slots=True, eq=False)
class Attempt:
    """One provider's attempt at one request."""

    call: int
    request: Request
    provider: Provider
    phase: Phase
    began: float
    deadline: float
    over: bool = False
    finished: bool = False
    """Whether nothing more can come from the provider, so that another node needs no CancelCall."""


def late(attempt: Attempt, time: str) -> bytes:
    """The error text for a provider whose time is over."""
    missing = "answer within {}" if attempt.phase is Phase.AT_WORK else "say within {} whether it is willing"
    return f"{attempt.provider.name} did not {missing.format(time)}".encode()


def is_map(fields: bytes) -> bool:
    try:
        return not fields or isinstance(msgspec.msgpack.decode(fields), dict)
    except msgspec.MsgspecError:
        return False


def error(conn: int, number: int, code: int, text: str) -> Answer:
    return failed(conn, number, Failure(code, b"", text.encode()))


def failed(conn: int, number: int, failure: Failure) -> Answer:
    """The answer that reports the failure of the last provider."""
    return Answer(conn, number, ERROR | (FIELDS if failure.fields else 0), *failure)
