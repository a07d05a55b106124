"""What a client asks that comes to another broker with durable publishes that were not answered: whether they are stored already.

Its new broker asks the one it was at before, or who has a copy of that one's streams. What nobody can tell of is sent again.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from busway.client.connection.core import Core
from busway.client.connection.sender import REQUEST, limits
from busway.errors import BusError, Disconnected

MOST: Final = 1024
"""Numbers in one question."""
_TOPIC: Final = "$bus/stored"
_LONGEST: Final = 2.0
"""Seconds that a broker may ask others."""

Run: TypeAlias = tuple[int, int]
"""The first of some numbers, and how many."""


class Stored(NamedTuple):
    """Messages whose numbers, offsets and sequences follow each other."""

    broker: str
    stream: str
    number: int
    many: int
    offset: int
    sequence: int


class Answer(msgspec.Struct, frozen=True):
    """What is known; brokers of which nobody knows anything, and those of which only a copy does, which may lack what they have stored last."""

    stored: list[Stored]
    unknown: list[str]
    unsure: list[str] = []


async def ask(core: Core, brokers: Sequence[str], numbers: Iterable[int], patience: float) -> Answer:
    """Where these brokers have stored messages of this client. The connection is being restored, so nothing else is sent meanwhile.

    `patience`: seconds until it is given up. The broker has half of them: it tells what it knows by then.
    """
    within = min(patience / 2, _LONGEST)
    question = msgspec.json.encode({"brokers": brokers, "numbers": runs(numbers), "within": within})
    aux, each = limits(patience, None)
    number = core.session.send(REQUEST, _TOPIC, question, aux=aux, each=each)
    try:
        reply = await core.answer(number, patience, _TOPIC)
        return msgspec.json.decode(reply.payload, type=Answer)
    except Disconnected:
        raise
    except (BusError, msgspec.MsgspecError):  # a broker that does not know the question, or no answer
        return Answer([], list(brokers))
    finally:
        core.pending.pop(number)


def runs(numbers: Iterable[int]) -> list[Run]:
    """Numbers, in their order, as runs."""
    found: list[Run] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found
