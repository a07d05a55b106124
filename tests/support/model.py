"""Ten-line models of the rules, which the native engine is compared with."""

from collections.abc import Iterator
from itertools import product


def segments(topic: str) -> list[str]:
    bare = topic.removeprefix("/")
    return bare.split("/") if bare else []


def meet(a: list[str], b: list[str]) -> bool:
    """Whether some concrete topic belongs to both patterns."""
    if not a or not b:
        return all(segment == "**" for segment in a or b)
    if a[0] == "**":
        return meet(a[1:], b) or meet(a, b[1:])
    if b[0] == "**":
        return meet(a, b[1:]) or meet(a[1:], b)
    return (a[0] == b[0] or "*" in (a[0], b[0])) and meet(a[1:], b[1:])


def matches(a: str, b: str) -> bool:
    return meet(segments(a), segments(b))


def concrete(alphabet: str, depth: int) -> Iterator[str]:
    """Every topic of up to `depth` segments, each one letter of the alphabet."""
    for count in range(depth + 1):
        for letters in product(alphabet, repeat=count):
            yield "/".join(letters)
