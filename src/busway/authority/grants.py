"""Grants as people write them: verbs and a topic pattern, such as `publish,subscribe orders/**`. Values only.

The users file has lists of them; `policy` compiles them for the engine.
"""

from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias, get_args

from busway._core import VERBS
from busway.topic import check_pattern

Verb: TypeAlias = Literal[
    "publish",
    "push",
    "request",
    "store",
    "retain",
    "subscribe",
    "serve",
    "read",
    "consume",
    "manage",
    "observe",
    "admin",
]

ALL: Final = "all"
"""Stands for all verbs."""
USER: Final = "{user}"
"""Stands for the user's name in a pattern."""

NUMBERS: Final[dict[str, int]] = {verb: number for number, verb in enumerate(VERBS)}
"""The engine's number of each verb."""

assert get_args(Verb) == VERBS


@dataclass(frozen=True, slots=True)
class Grant:
    """Some verbs on a topic pattern."""

    verbs: tuple[str, ...]
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The grant in a text. Raises ValueError."""
        listed, _, pattern = text.strip().partition(" ")
        pattern = pattern.strip()
        if not pattern:
            raise ValueError(f'{text!r} has no topic; write verbs and a pattern, such as "publish orders/**"')
        verbs = tuple(dict.fromkeys(listed.split(",")))
        if verbs == (ALL,):
            verbs = VERBS
        for verb in verbs:
            if verb not in NUMBERS:
                raise ValueError(f"{verb!r} is no verb; the verbs are {', '.join(VERBS)}, and {ALL}")
        if "{" in pattern.replace(USER, ""):
            raise ValueError(f"{pattern!r} has a placeholder other than {USER}")
        check_pattern(pattern.replace(USER, "user"))
        return cls(verbs, pattern.removeprefix("/"))

    @property
    def bits(self) -> int:
        """The verbs as bits."""
        return sum(1 << NUMBERS[verb] for verb in self.verbs)

    @property
    def names_user(self) -> bool:
        """Whether the pattern depends on the user's name."""
        return USER in self.pattern

    def of(self, user: str) -> str:
        """The pattern for a user."""
        return self.pattern.replace(USER, user)

    def __str__(self) -> str:
        return f"{ALL if self.verbs == VERBS else ','.join(self.verbs)} {self.pattern}"
