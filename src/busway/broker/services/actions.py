"""What the machine of shared requests is made of: what it wants done, the requests under way, and each provider's part in them."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

from busway.broker.flags import ERROR, FIELDS
from busway.broker.services.providers import Provider
from busway.settings import Scope


class Ask(NamedTuple):
    """Ask a provider whether it would take this request; answered by accepted()."""

    conn: int
    service: int
    call: int
    origin: int
    topic: str
    frame: bytes


class Call(NamedTuple):
    """Give it the request; answered by answered()."""

    conn: int
    service: int
    call: int
    origin: int
    topic: str
    frame: bytes


class Answer(NamedTuple):
    """Tell the requester. Without PARTIAL in the flags this is the end."""

    conn: int
    number: int
    flags: int
    code: int
    fields: bytes
    payload: bytes


class Failure(NamedTuple):
    """Why a provider gave no good answer; the fields are those of its reply."""

    code: int
    fields: bytes
    payload: bytes


class Willing(NamedTuple):
    """Tell another node whether somebody here would take the request that it asked for."""

    conn: int
    number: int
    code: int


class Terms(NamedTuple):
    """Tell another node, behind what it was asked or called for, how long each of its providers may take."""

    conn: int
    call: int
    each: float


class Moved(NamedTuple):
    """Tell another node that its request has gone on to somebody else here, whose time begins now."""

    conn: int
    number: int


class CancelCall(NamedTuple):
    """Tell another node that nobody waits for its answer any more."""

    conn: int
    call: int


Action: TypeAlias = Ask | Call | Answer | Willing | Terms | Moved | CancelCall


class Phase(Enum):
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
    """Whether the requester has been told something already: then nobody else can begin from the start."""
    over: bool = False
    scope: Scope = "global"
    """Whose services it is for."""
    far: bool = False
    """It is of a client of another node, so it goes to no other one."""
    asking: bool = False
    """That node only wants to know yet whether somebody here would take it."""
    promised: bool = False
    """And was told that somebody would."""
    begun: bool = False
    """Somebody was tried before."""

    def may_go_to(self, provider: Provider) -> bool:
        if self.far:
            return not provider.far and provider.scope != "local"
        if provider.far:
            return self.scope != "local"
        return self.scope != "remote" and provider.scope != "remote"


@dataclass(slots=True, eq=False)
class Attempt:
    """One provider's part in one request."""

    call: int
    request: Request
    provider: Provider
    phase: Phase
    began: float
    deadline: float
    over: bool = False
    settled: bool = False
    """Another node has said its last word about it, or can't."""


def late(attempt: Attempt, time: str) -> bytes:
    """What is told of a provider whose time is over."""
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
    """The failure of the last provider, to the requester."""
    return Answer(conn, number, ERROR | (FIELDS if failure.fields else 0), *failure)
