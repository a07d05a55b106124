"""Parser of field and rule flags: `-f venue=krk`, `--where 'price=expr:value > 10'`. Called by the verbs; no I/O."""

from typing import Any

import msgspec
import typer

from busway.client.field_text import parse_fields, parse_rules, parse_value
from busway.fields import Where


def fields(given: list[str] | None) -> dict[str, Any] | None:
    """Parse `name=value` pairs. A value that is valid JSON is decoded; any other value is text."""
    if not given:
        return None
    try:
        return parse_fields(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def rules(given: list[str] | None) -> Where | None:
    """Parse the rules of --where."""
    if not given:
        return None
    try:
        return parse_rules(given)
    except ValueError as error:
        raise typer.BadParameter(f"--where: {error}") from None


def shown(values: dict[str, Any]) -> str:
    """Return fields as one line for a terminal: `venue=krk size=5`."""
    text = " ".join(f"{name}={_text(value)}" for name, value in values.items())
    # JSON does not escape all control characters.
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _text(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and parse_value(value) == value and " " not in value:
        return value
    return msgspec.json.encode(value).decode()  # bytes as base64
