"""Encodes message fields and subscription rules from Python values to MessagePack; clients call it before they send.

A wrong field or rule raises InvalidFields or InvalidRule with its name before anything is sent. The engine checks the
result with the same code that the broker runs.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, cast, final

import msgspec

from busway._core import Rules, check_fields
from busway.errors import InvalidFields, InvalidRule

__all__ = ["ANY", "Compiled", "Expr", "Fields", "Value", "Where", "compile_where", "encode_fields", "expr"]


@final
class _Any:
    __slots__ = ()

    def __repr__(self) -> str:
        return "busway.ANY"

    def __reduce__(self) -> str:
        return "ANY"


ANY: Final = _Any()
"""As a rule: the field must be present, with any value."""


@final
@dataclass(frozen=True, slots=True)
class Expr:
    """A CEL expression that the broker evaluates; expr() creates it."""

    text: str

    def __str__(self) -> str:
        return self.text


def expr(text: str) -> Expr:
    """Create a CEL expression as the rule of one field (the variable `value`) or of a whole message."""
    if not isinstance(text, str):
        raise TypeError(f"expr() takes the text of an expression, not a {type(text).__name__}")
    return Expr(text)


Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | tuple[Value, ...] | Mapping[str, Value] | None"
"""The types of a field's value. An enumeration member is sent as its value."""
Fields: TypeAlias = Mapping[str, "Value"]
Rule: TypeAlias = Any
"""A rule for a field: a text with `*` or `?` is a glob; a list, tuple or set is a choice of values; ANY requires the
field; a callable is a predicate; a compiled regular expression or an Expr must match. Any other value must be equal and
of the same type."""
Where: TypeAlias = Mapping[str, Rule] | Expr
Extra: TypeAlias = Collection[str] | Callable[[Any, list[str]], object]

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
# Convert an instance of a subclass to its base type, even if the subclass overrides str() and the like.
_EXACT: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)
_BYTES: Final = (bytes, bytearray, memoryview)
_ENCODER: Final = msgspec.msgpack.Encoder()
_ABSENT: Final = object()
_DEEP: Final = 16
"""The maximum nesting of lists and dicts on the wire."""
_RULE_DEPTH: Final = 3
"""The nesting depth of a rule's value in the encoded rules."""


def encode_fields(fields: Fields) -> bytes:
    """Encode a message's fields as MessagePack; no bytes if there are none."""
    if not fields:
        return b""
    values: Mapping[str, object] = fields
    if type(fields) is not dict or not _PLAIN.issuperset(map(type, fields.values())):
        values = {name: _plain(name, value) for name, value in fields.items()}
    try:
        encoded = _ENCODER.encode(values)
        check_fields(encoded)
    except (InvalidFields, ValueError, OverflowError, TypeError) as error:
        raise _field_error(values, error) from error
    return encoded


def _plain(name: str, value: object, depth: int = 0) -> object:
    """Convert the value to types that MessagePack can encode."""
    if isinstance(value, Enum):
        return _plain(name, value.value, depth)
    if type(value) in _PLAIN:
        return value
    for kind, exact in _EXACT:
        if isinstance(value, kind):
            return exact(value)
    if isinstance(value, _BYTES):
        return bytes(value)
    if depth >= _DEEP and isinstance(value, (list, tuple, Mapping)):
        text = f"at most {_DEEP} levels of lists and dicts are allowed, {_DEEP - _RULE_DEPTH} in a rule"
        raise InvalidFields(f"field {name!r} is nested too deep: {text}", name=name)
    if isinstance(value, (list, tuple)):
        return [_plain(name, item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(name, item, depth + 1) for key, item in value.items()}
    hint = "; give a list" if isinstance(value, (set, frozenset)) else ""
    raise InvalidFields(f"field {name!r} is a {type(value).__name__}, which a field can't hold{hint}", name=name)


def _field_error(values: Mapping[Any, object], error: Exception) -> InvalidFields:
    """Return the error with the name of the first field that is invalid on its own."""
    for name, value in values.items():
        if not isinstance(name, str):
            return InvalidFields(f"the name of a field must be a str, not {name!r}", name=str(name))
        try:
            check_fields(_ENCODER.encode({name: value}))
        except InvalidFields as wrong:
            return InvalidFields(wrong.reason, name=name)
        except (ValueError, OverflowError, TypeError) as wrong:
            return InvalidFields(f"field {name!r}: {wrong}", name=name)
    return InvalidFields(str(error))


class Addressed(Protocol):
    """The attributes of a message that rules read."""

    @property
    def fields(self) -> Mapping[str, Any]: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def sender(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """The checked rules of a subscription: one part is for the broker to evaluate, the other for the client."""

    wire: bytes
    """The broker's part for the SUBSCRIBE frame; empty if there is none."""
    names: frozenset[str] = frozenset()
    """The fields that have a rule."""
    predicates: tuple[tuple[str, Callable[[Any], object]], ...] = ()
    extra: Callable[[Any, list[str]], object] | None = None

    @property
    def local(self) -> bool:
        """True if the client has rules to evaluate."""
        return bool(self.predicates) or self.extra is not None

    def accepts(self, message: Addressed, report: Callable[[Exception], object]) -> bool:
        """Evaluate the client's part. A function that raises does not match, and `report` gets its error."""
        try:
            for name, predicate in self.predicates:
                value = _value_of(message, name)
                if value is _ABSENT or not predicate(value):
                    return False
            if self.extra is not None:
                more = [name for name in message.fields if name not in self.names]
                return bool(self.extra(message, more))  # noqa: S610, not a database query
        except Exception as error:  # noqa: BLE001, the predicate is the user's code
            report(error)
            return False
        return True


def _value_of(message: Addressed, name: str) -> object:
    match name:
        case ".id":
            return message.sender or message.id[:16]
        case ".ts":
            return message.time_ns
        case "msg":
            return message.payload
    return message.fields.get(name, _ABSENT)


def compile_where(where: Where | None = None, extra: Extra | None = None) -> Compiled:
    """Check the rules of a subscription, and split them between broker and client."""
    predicates: list[tuple[str, Callable[[Any], object]]] = []
    rules: list[list[object]] = []
    if isinstance(where, Expr):
        rules.append(["", "cel", where.text])
    elif isinstance(where, Mapping):
        for name, rule in where.items():
            if not isinstance(name, str):
                raise InvalidRule(f"the name of a field must be a str, not {name!r}", name=str(name))
            if not name and not isinstance(rule, Expr):
                raise InvalidRule(
                    f"the rule {rule!r} has no name: name its field, or pass busway.expr(...) instead of the dict for a"
                    " rule about the whole message"
                )
            op, argument = _rule(name, rule)
            if op == "call":
                predicates.append((name, cast("Callable[[Any], object]", argument)))
                op, argument = "any", None
            rules.append([name, op, argument])
    elif where is not None:
        raise InvalidRule(f"where= takes a dict of rules or busway.expr(), not a {type(where).__name__}")
    allowed = None if extra is None or callable(extra) else _names(extra)
    wire = b""
    if rules or allowed is not None:
        wire = _ENCODER.encode({"where": rules, "extra": allowed})
        _check(wire, rules)
    names = frozenset(cast("str", rule[0]) for rule in rules)
    return Compiled(wire, names, tuple(predicates), extra if callable(extra) else None)


def _check(wire: bytes, rules: list[list[object]]) -> None:
    """Let the engine compile the rules. The error names the field whose rule is not valid."""
    try:
        Rules(wire)
    except InvalidRule as error:
        for rule in rules:
            try:
                Rules(_ENCODER.encode({"where": [rule]}))
            except InvalidRule as wrong:
                raise InvalidRule(wrong.reason, name=cast("str", rule[0])) from None
        raise InvalidRule(error.reason) from None


def _rule(name: str, rule: object) -> tuple[str, object]:
    """Return the operator and the argument of a rule, depending on its type."""
    while isinstance(rule, Enum):
        rule = rule.value
    if rule is ANY:
        return "any", None
    if isinstance(rule, Expr):
        return "cel", rule.text
    if isinstance(rule, re.Pattern):
        return "re", _engine_regex(name, rule)
    if isinstance(rule, str) and ("*" in rule or "?" in rule):
        return "glob", _wanted(name, rule)
    if isinstance(rule, (list, tuple, set, frozenset)):
        return "in", [_wanted(name, _item(name, item), _RULE_DEPTH + 1) for item in rule]
    if callable(rule):
        return "call", rule
    return "eq", _wanted(name, rule)


def _item(name: str, item: object) -> object:
    """Return an item of a list of values. Raises InvalidRule if the item is itself a rule."""
    match item:
        case Enum():
            return item
        case re.Pattern():
            kind = "regular expressions"
        case Expr():
            kind = "expressions"
        case _Any():
            kind = "busway.ANY"
        case _ if callable(item):
            kind = "functions"
        case _:
            return item
    raise InvalidRule(
        f"rule for {name!r}: a list contains the allowed values of a field, not {kind}; a field has one rule",
        name=name,
    )


def _wanted(name: str, value: object, depth: int = _RULE_DEPTH) -> object:
    """Convert a value to compare with to types that MessagePack can encode."""
    while isinstance(value, Enum):
        value = value.value
    try:
        if name == "msg" and not isinstance(value, (str, *_BYTES)):
            value = msgspec.json.encode(value)
        plain = _plain(name, value, depth)
        _ENCODER.encode(plain)
    except InvalidFields as error:
        raise InvalidRule(f"rule for {name!r}: {error.reason}", name=name) from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidRule(f"rule for {name!r}: {error}", name=name) from error
    return plain


def _names(extra: Collection[str]) -> list[str]:
    given: object = extra
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise InvalidRule(
            "extra= takes a set or list with the names of further fields that a message may have, or a function that"
            f" gets the message and the list of these names, not {extra!r}"
        )
    return sorted(extra)


_FLAGS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
_PIECE: Final = re.compile(
    r"""(?P<escape> \\. )
      | (?P<look> \(\? (?: [=!>(] | <[=!] | P= ) )
      | (?P<possessive> (?: [*+?] | \{\d*,?\d*\} ) \+ )
      | (?P<open> \[ \^? \]? )
      | .""",
    re.VERBOSE | re.DOTALL,
)


def _engine_regex(name: str, pattern: "re.Pattern[Any]") -> str:
    """Translate a pattern to the engine's syntax. Raises InvalidRule for constructs that the engine does not have."""
    text = pattern.pattern
    if not isinstance(text, str):
        raise InvalidRule(f"rule for {name!r}: the regular expression must match str, not bytes", name=name)
    if pattern.flags & re.ASCII:
        raise InvalidRule(f"rule for {name!r}: re.ASCII is not supported; write [0-9] for \\d and so on", name=name)
    verbose = bool(pattern.flags & re.VERBOSE)
    flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    try:
        inner = "".join(_pieces(text, verbose=verbose))
    except ValueError as error:
        reason = f"rule for {name!r}: {text!r} has {error}; the broker's engine has the syntax of Rust's crate regex"
        raise InvalidRule(reason, name=name) from None
    # In verbose mode the text may end in a comment, which a newline ends.
    return f"(?{flags}:{inner}{chr(10) * verbose})"


def _pieces(text: str, *, verbose: bool) -> Iterator[str]:
    at = 0
    inside = False  # in a class [...], where only escapes and the closing bracket have a meaning
    while found := _PIECE.match(text, at):
        kind = found.lastgroup
        piece = found[0] if kind == "escape" or not inside else text[at]
        at += len(piece)
        if kind == "escape":
            if "1" <= piece[1] <= "9":
                raise ValueError(f"the reference {piece} to a group")
            # The engine writes the end of the text differently, and \< and \> are word boundaries there.
            yield {"\\Z": "\\z", "\\<": "<", "\\>": ">"}.get(piece, piece)
        elif inside:
            inside = piece != "]"
            if piece == "-" and text[at : at + 1] == "-":
                raise ValueError("-- in a class: write one of them as \\-")
            # These characters are plain in Python's classes, but not in the engine's.
            special = piece in "[&~" or (verbose and (piece.isspace() or piece == "#"))
            yield f"\\x{ord(piece):02x}" if special else piece
        elif kind == "look":
            raise ValueError(f"{piece}, which is a lookaround, a reference to a group or an atomic group")
        elif kind == "possessive":
            raise ValueError(f"the possessive repetition {piece}")
        else:
            inside = kind == "open"
            yield piece.replace("]", "\\]") if inside else piece
