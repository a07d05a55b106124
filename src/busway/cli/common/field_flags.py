"""Parser of field and rule flags: `-f venue=krk`, `--where 'price=expr:value > 10'`. Called by the verbs; no I/O."""

import re
from typing import Any, Final

import msgspec
import typer

from busway.errors import InvalidFields, InvalidRule
from busway.fields import ANY, Expr, Where, compile_where, encode_fields, expr

_EXPRESSION: Final = "expr:"
_REGULAR: Final = "re:"


def fields(given: list[str] | None) -> dict[str, Any] | None:
    """Parse `name=value` pairs. A value that is valid JSON is decoded; any other value is text."""
    if not given:
        return None
    made: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not a field: write name=value")
        if name in made:
            raise typer.BadParameter(f"the field {name!r} is given twice; give each field once")
        made[name] = _value(value)
    try:
        encode_fields(made)
    except InvalidFields as error:
        raise typer.BadParameter(str(error)) from None
    return made


def rules(given: list[str] | None) -> Where | None:
    """Parse the rules of --where."""
    if not given:
        return None
    made: dict[str, Any] = {}
    whole: Expr | None = None
    for pair in given:
        if pair.startswith(_EXPRESSION):
            if whole is not None:
                raise typer.BadParameter("--where takes one expression over the whole message; join them with &&")
            whole = expr(pair.removeprefix(_EXPRESSION))
            continue
        name, equals, rule = pair.partition("=")
        if name in made:
            raise typer.BadParameter(f"the field {name!r} has two rules; join them in one expression")
        made[name] = _rule(name, rule) if equals else ANY
    if whole is not None and made:
        raise typer.BadParameter("give rules for fields or one expression over the whole message, not both")
    where = made if whole is None else whole
    try:
        compile_where(where)
    except InvalidRule as error:
        raise typer.BadParameter(str(error)) from None
    return where


def shown(values: dict[str, Any]) -> str:
    """Return fields as one line for a terminal: `venue=krk size=5`."""
    text = " ".join(f"{name}={_text(value)}" for name, value in values.items())
    # JSON does not escape all control characters.
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _text(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and _value(value) == value and " " not in value:
        return value
    return msgspec.json.encode(value).decode()  # bytes as base64


def _rule(name: str, rule: str) -> Any:
    if rule.startswith(_EXPRESSION):
        return expr(rule.removeprefix(_EXPRESSION))
    if rule.startswith(_REGULAR):
        try:
            return re.compile(rule.removeprefix(_REGULAR))
        except re.error as error:
            raise typer.BadParameter(f"the rule of {name!r} is not a regular expression: {error}") from None
    return _value(rule)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
