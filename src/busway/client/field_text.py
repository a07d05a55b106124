"""Fields and rules as people write them: `venue=krk`, `price=expr:value > 10`. The CLI and the console parse them here.

A value that is valid JSON is decoded; any other value is text. Errors are ValueError.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from busway.errors import InvalidFields, InvalidRule
from busway.fields import ANY, Expr, Where, compile_where, encode_fields, expr

_EXPRESSION: Final = "expr:"
_REGULAR: Final = "re:"


def parse_fields(given: Iterable[str]) -> dict[str, Any]:
    """Parse `name=value` pairs."""
    made: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not a field: write name=value")
        if name in made:
            raise ValueError(f"the field {name!r} is given twice; give each field once")
        made[name] = parse_value(value)
    try:
        encode_fields(made)
    except InvalidFields as error:
        raise ValueError(str(error)) from None
    return made


def parse_rules(given: Iterable[str]) -> Where:
    """Parse rules: `name=value`, `name=re:...`, `name=expr:...`, `name` alone, or `expr:...` about the whole message."""
    made: dict[str, Any] = {}
    whole: Expr | None = None
    for pair in given:
        if pair.startswith(_EXPRESSION):
            if whole is not None:
                raise ValueError("rules take one expression over the whole message; join them with &&")
            whole = expr(pair.removeprefix(_EXPRESSION))
            continue
        name, equals, rule = pair.partition("=")
        if name in made:
            raise ValueError(f"the field {name!r} has two rules; join them in one expression")
        made[name] = _rule(name, rule) if equals else ANY
    if whole is not None and made:
        raise ValueError("give rules for fields or one expression over the whole message, not both")
    where = made if whole is None else whole
    try:
        compile_where(where)
    except InvalidRule as error:
        raise ValueError(str(error)) from None
    return where


def _rule(name: str, rule: str) -> Any:
    if rule.startswith(_EXPRESSION):
        return expr(rule.removeprefix(_EXPRESSION))
    if rule.startswith(_REGULAR):
        try:
            return re.compile(rule.removeprefix(_REGULAR))
        except re.error as error:
            raise ValueError(f"the rule of {name!r} is not a regular expression: {error}") from None
    return parse_value(rule)


def parse_value(text: str) -> Any:
    """The value of a text that is JSON; any other text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
