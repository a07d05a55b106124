"""Regular languages by derivatives: decides exactly, and slowly, whether a regular expression and a topic pattern meet.

A language is a nested tuple; `derive` is what may follow after one letter, `empty` whether the language holds the empty
word. Two languages meet if some pair of derivatives, reached by the same letters, both hold it. Letters are those that the
tests use, and one (`z`) that stands for all others.
"""

from typing import Any

LETTERS = "abz/"
Language = tuple[Any, ...]

NOTHING: Language = ("none",)
EPSILON: Language = ("epsilon",)


def letters(some: str) -> Language:
    return ("letters", frozenset(some))


def seq(a: Language, b: Language) -> Language:
    if NOTHING in (a, b):
        return NOTHING
    if a == EPSILON:
        return b
    return a if b == EPSILON else ("seq", a, b)


def alt(*options: Language) -> Language:
    flat: set[Language] = set()
    for option in options:
        flat |= option[1] if option[0] == "alt" else {option}
    flat.discard(NOTHING)
    if len(flat) == 1:
        return flat.pop()
    return ("alt", frozenset(flat)) if flat else NOTHING


def star(a: Language) -> Language:
    return EPSILON if a in (NOTHING, EPSILON) else a if a[0] == "star" else ("star", a)


def empty(a: Language) -> bool:
    match a[0]:
        case "epsilon" | "star":
            return True
        case "seq":
            return empty(a[1]) and empty(a[2])
        case "alt":
            return any(map(empty, a[1]))
    return False


def derive(a: Language, letter: str) -> Language:
    match a[0]:
        case "letters":
            return EPSILON if letter in a[1] else NOTHING
        case "seq":
            first = seq(derive(a[1], letter), a[2])
            return alt(first, derive(a[2], letter)) if empty(a[1]) else first
        case "alt":
            return alt(*(derive(option, letter) for option in a[1]))
        case "star":
            return seq(derive(a[1], letter), a)
    return NOTHING


def meet(a: Language, b: Language) -> bool:
    seen = {(a, b)}
    todo = [(a, b)]
    while todo:
        left, right = todo.pop()
        if empty(left) and empty(right):
            return True
        for letter in LETTERS:
            pair = derive(left, letter), derive(right, letter)
            if NOTHING not in pair and pair not in seen:
                seen.add(pair)
                todo.append(pair)
    return False


SEGMENT = seq(letters("abz"), star(letters("abz")))


def pattern(segments: list[str]) -> Language:
    """All topics of a pattern, each with a slash in front (the empty topic: none)."""
    language = EPSILON
    for segment in reversed(segments):
        slash = letters("/")
        if segment == "**":
            part = star(seq(slash, SEGMENT))
        elif segment == "*":
            part = seq(slash, SEGMENT)
        else:
            part = slash
            for letter in segment:
                part = seq(part, letters(letter))
        language = seq(part, language)
    return language


def meets_pattern(expression: Language, segments: list[str]) -> bool:
    """Whether the expression matches the whole of some topic of the pattern."""
    topics = pattern(segments)
    return (empty(expression) and empty(topics)) or meet(expression, derive(topics, "/"))


def hard(count: int) -> list[str]:
    """Different subscriptions by expressions that take many steps to be compared with HARDEST, which none of them matches."""
    return [f"re:(0|1|/){{{number}}}.*1(0|1|/){{7}}x" for number in range(count)]


HARDEST = "*/**/" * 8 + "y"
