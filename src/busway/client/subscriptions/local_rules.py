"""Local rules: rules of a subscription that are Python functions, which the client calls for each message.

The subscription passes LocalRules.accepts to its inbox reader. All other rules are checked by the broker.
"""

from inspect import iscoroutinefunction
from typing import Final

from busway._core import Message
from busway.client.connection.core import Core
from busway.errors import InvalidRule
from busway.fields import Compiled

_COPIES: Final = {"push", "request"}
"""The kinds of messages that only a listening subscription gets, as copies."""


class LocalRules:
    """The local rules of one subscription."""

    def __init__(self, core: Core, pattern: str, rules: Compiled, *, listen: bool) -> None:
        self._core = core
        self._pattern = pattern
        self._rules = rules
        self._listen = listen

    def accepts(self, message: Message) -> bool:
        """Whether the subscription gets this message."""
        kind = message.kind
        if kind == "notify":
            return True
        return (self._listen or kind not in _COPIES) and self._rules.accepts(message, self._report)

    def _report(self, error: Exception) -> None:
        self._core.report(error, "a rule", self._pattern)


def check_local(rules: Compiled, group: str) -> None:
    """Raise InvalidRule if the client cannot call these rules."""
    name = rules.predicates[0][0] if rules.predicates else ""
    if group:
        what = f"the rule for {name!r}" if rules.predicates else "extra"
        reason = (
            f"{what} is a callable, but the broker selects the member of a group for a message, and can't call it: "
            "write it as busway.expr(...), or subscribe without a group"
        )
        raise InvalidRule(reason, name=name)
    for name, predicate in [*rules.predicates, ("extra", rules.extra)]:
        if iscoroutinefunction(predicate):
            raise InvalidRule(f"the rule for {name!r} is a coroutine function; a plain function is needed", name=name)
