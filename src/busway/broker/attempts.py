"""What the machine of shared requests is made of: what it wants done, the requests under way, and each provider's part in them."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from busway.broker.providers import Provider


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


Action: TypeAlias = Ask | Call | Answer


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
    error: tuple[int, str] | None = None
    spoken: bool = False
    """Whether the requester has been told something already: then nobody else can begin from the start."""
    over: bool = False


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
