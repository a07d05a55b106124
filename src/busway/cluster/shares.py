"""Who of several nodes may hand out how many messages next to one consumer, so that it never has more than its window allows.

A machine: the parts of a stream that have something take turns.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def shares(free: int, parties: Sequence[T], turn: int) -> dict[T, int]:
    """Divide so many places; with fewer places than parties the turn decides whose they are."""
    if free <= 0 or not parties:
        return {}
    each, over = divmod(free, len(parties))
    at = turn % len(parties)
    order = [*parties[at:], *parties[:at]]
    return {one: each + (number < over) for number, one in enumerate(order) if each or number < over}
