"""Grants of a key: the topic patterns that it may publish, subscribe, serve and request. Values only.

`keys.py` makes keys, and `guard.py` asks them for each request.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from busway._core import Selection
from busway.topic import check_pattern, is_reserved

Verb: TypeAlias = Literal["publish", "subscribe", "serve", "request"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)

ACTIONS: Final[dict[str, tuple[Verb, ...]]] = {
    "publish": ("publish",),
    "subscribe": ("subscribe",),
    "serve": ("serve",),
    "request": ("request",),
    "manage": ("publish", "serve"),
    "look": ("publish", "subscribe", "serve"),
}
"""For each action of the JSON protocol the verbs of which the key needs one."""

_REGULAR: Final = "re:"
_STEPS: Final = 10_000
"""Steps of one comparison, after which a pattern counts as not covered. Real patterns need a few."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a client with its grants. A key may do only what is granted."""

    api_key: str
    secret: str | None = field(default=None, repr=False)
    name: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    window: float | None = None
    """Largest error of a request's timestamp in seconds. None: requests need no timestamp, and replays are possible."""

    def allows(self, action: str, topic: str) -> bool:
        """Whether the key may carry out an action of the JSON protocol on a topic."""
        return any(self.may(verb, topic) for verb in ACTIONS[action])

    def may(self, verb: Verb, topic: str) -> bool:
        """Whether a granted pattern for the verb covers the whole topic or pattern; False for an invalid one."""
        if verb not in VERBS:
            raise ValueError(f"verb must be one of {', '.join(VERBS)}, not {verb!r}")
        granted: tuple[str, ...] = getattr(self, verb)
        return covered(granted, topic)


def covered(granted: Iterable[str], requested: str) -> bool:
    """Whether one of the granted patterns covers a topic or pattern."""
    try:
        requested = check_pattern(requested)
    except ValueError:
        return False
    return any(covers(pattern, requested) for pattern in granted)


def covers(granted: str, requested: str) -> bool:
    """Whether every topic that the checked pattern `requested` matches also matches `granted`.

    Topics of the broker (`$bus/...`) match only patterns that begin with `$bus`, so that a grant of all topics does not
    include control of the broker.
    """
    if granted == requested:
        return True
    if requested.startswith(_REGULAR):
        return False  # the topics of a regular expression are unknown, so only the same expression covers it
    if is_reserved(requested) and not is_reserved(granted):
        return False
    if granted.startswith(_REGULAR):
        return "*" not in requested and Selection(granted).covers(requested)
    return _contains(_segments(granted), _segments(requested))


def _segments(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/")) if pattern else ()


def _contains(whole: tuple[str, ...], part: tuple[str, ...]) -> bool:
    """Whether the pattern `whole` matches all topics of the pattern `part`.

    The search walks both patterns at once, with the segments that they name and one that stands for all others. A
    state is an index in `part` and the set of indexes in `whole` that the same segments lead to. `part` is not
    contained if it can end in a state where `whole` can't.
    """
    names = {segment for segment in (*whole, *part) if "*" not in segment}
    names.add("/")  # no segment contains a slash, so it stands for all others
    start = (0, _open(whole, {0}))
    queue, seen = deque([start]), {start}
    while queue:
        index, whole_indexes = queue.popleft()
        indexes = {index}
        while index < len(part) and part[index] == "**":
            index += 1
            indexes.add(index)
        if len(part) in indexes and len(whole) not in whole_indexes:
            return False
        for current in indexes - {len(part)}:
            segment = part[current]
            for name in names if "*" in segment else {segment}:
                state = (current if segment == "**" else current + 1, _step(whole, whole_indexes, name))
                if state not in seen:
                    seen.add(state)
                    queue.append(state)
        if len(seen) > _STEPS:
            return False
    return True


def _open(whole: tuple[str, ...], indexes: set[int]) -> frozenset[int]:
    """The indexes, and those after each `**`, which may match no segment."""
    found = set(indexes)
    for start in indexes:
        index = start
        while index < len(whole) and whole[index] == "**":
            index += 1
            found.add(index)
    return frozenset(found)


def _step(whole: tuple[str, ...], indexes: frozenset[int], name: str) -> frozenset[int]:
    """The indexes in `whole` after one segment."""
    found = set()
    for index in indexes - {len(whole)}:
        segment = whole[index]
        if segment == "**":
            found.add(index)
        elif segment in ("*", name):
            found.add(index + 1)
    return _open(whole, found)
