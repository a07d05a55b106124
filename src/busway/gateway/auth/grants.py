"""What a key may do: the topics that it may publish, subscribe, serve and request. Values only."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from busway._core import Selection
from busway.topic import check_pattern, is_reserved

Verb: TypeAlias = Literal["publish", "subscribe", "serve", "request"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)

_REGULAR: Final = "re:"
_STEPS: Final = 10_000
"""Looks at a pattern that is asked for, after which it is taken for not covered. Real ones need a few."""


@dataclass(frozen=True, slots=True)
class Key:
    """Who sends a request. What is not granted is not allowed."""

    api_key: str
    secret: str | None = field(default=None, repr=False)
    name: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    window: float | None = None
    """Seconds that the timestamp of a request may be off; None: requests need no timestamp, and can be sent again."""

    def may(self, verb: Verb, topic: str) -> bool:
        """Whether one of its patterns for the verb covers the whole topic or pattern; a wrong topic is never covered."""
        if verb not in VERBS:
            raise ValueError(f"verb must be one of {', '.join(VERBS)}, not {verb!r}")
        granted: tuple[str, ...] = getattr(self, verb)
        return covered(granted, topic)


def covered(granted: Iterable[str], asked: str) -> bool:
    try:
        asked = check_pattern(asked)
    except ValueError:
        return False
    return any(covers(one, asked) for one in granted)


def covers(granted: str, asked: str) -> bool:
    """Whether every topic of one checked pattern belongs to another one, too.

    Topics of the broker (`$bus/...`) belong only to patterns that begin with `$bus`, so that a grant of everything doesn't
    hand over the broker.
    """
    if granted == asked:
        return True
    if asked.startswith(_REGULAR):
        return False  # which topics it matches can't be told; only the same expression covers it
    if is_reserved(asked) and not is_reserved(granted):
        return False
    if granted.startswith(_REGULAR):
        return "*" not in asked and Selection(granted).covers(asked)
    return _contains(_fragments(granted), _fragments(asked))


def _fragments(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/")) if pattern else ()


def _contains(whole: tuple[str, ...], part: tuple[str, ...]) -> bool:
    """Both patterns are walked at once, over every fragment that makes a difference: those that are named, and another one.

    A place in `part` with the set of places in `whole` that the same fragments lead to; it is not contained if `part` can end
    where `whole` can't.
    """
    names = {one for one in (*whole, *part) if "*" not in one} | {
        "/"
    }  # no fragment has a slash: it stands for all others
    start = (0, _open(whole, {0}))
    waiting, seen = deque([start]), {start}
    while waiting:
        at, places = waiting.popleft()
        here = {at}
        while at < len(part) and part[at] == "**":
            at += 1
            here.add(at)
        if len(part) in here and len(whole) not in places:
            return False
        for place in here - {len(part)}:
            wanted = part[place]
            for name in names if "*" in wanted else {wanted}:
                step = (place if wanted == "**" else place + 1, _step(whole, places, name))
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
        if len(seen) > _STEPS:
            return False
    return True


def _open(whole: tuple[str, ...], places: set[int]) -> frozenset[int]:
    """The places, and those behind `**`, which may stand for nothing."""
    found = set(places)
    for place in sorted(places):
        while place < len(whole) and whole[place] == "**":
            place += 1  # noqa: PLW2901 - it walks
            found.add(place)
    return frozenset(found)


def _step(whole: tuple[str, ...], places: frozenset[int], name: str) -> frozenset[int]:
    found = set()
    for place in places - {len(whole)}:
        wanted = whole[place]
        if wanted == "**":
            found.add(place)
        elif wanted in ("*", name):
            found.add(place + 1)
    return _open(whole, found)
