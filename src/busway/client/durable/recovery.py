"""Recovery of durable publishes after a change of the broker: finds out which of them the previous broker has stored.

The durable publisher calls this before it sends unanswered messages again. The new broker asks the previous one, or its
mirror. Messages whose state no node knows are sent again.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from busway.client.connection.core import Core
from busway.client.connection.sender import REQUEST, limits
from busway.errors import BusError, Disconnected

MOST: Final = 1024
"""Most numbers in one request."""
_TOPIC: Final = "$bus/stored"
_MAX_WITHIN: Final = 2.0
"""Most seconds that a broker may wait for the answers of other nodes."""

Run: TypeAlias = tuple[int, int]
"""The first of consecutive numbers, and their count."""


class Stored(NamedTuple):
    """Stored messages with consecutive numbers, offsets and sequences."""

    broker: str
    stream: str
    number: int
    many: int
    offset: int
    sequence: int


class Answer(msgspec.Struct, frozen=True):
    """The messages that are known to be stored, and the brokers whose state is uncertain.

    `unknown`: no node could answer for these brokers. `unsure`: only a mirror answered; it may lack the last messages.
    """

    stored: list[Stored]
    unknown: list[str]
    unsure: list[str] = []


async def ask(core: Core, brokers: Sequence[str], numbers: Iterable[int], patience: float) -> Answer:
    """Ask where these brokers have stored messages of this client, while the connection is restored.

    Without an answer in `patience` seconds all these brokers are unknown. The broker has half of this time to collect
    the answers of other nodes.
    """
    within = min(patience / 2, _MAX_WITHIN)
    question = msgspec.json.encode({"brokers": brokers, "numbers": runs(numbers), "within": within})
    aux, each = limits(patience, None)
    number = core.session.send(REQUEST, _TOPIC, question, aux=aux, each=each)
    try:
        reply = await core.answer(number, patience, _TOPIC)
        return msgspec.json.decode(reply.payload, type=Answer)
    except Disconnected:
        raise
    except (BusError, msgspec.MsgspecError):  # the broker does not know this request, or did not answer
        return Answer([], list(brokers))
    finally:
        core.pending.pop(number)


def runs(numbers: Iterable[int]) -> list[Run]:
    """Sorted numbers as runs."""
    found: list[Run] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found
