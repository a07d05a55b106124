"""Fields of messages and the rules of subscriptions: from Python values to what the wire carries.

A value; no I/O. Invariant: whatever is wrong with a field or a rule is an InvalidFields or InvalidRule that names it, raised
before anything is sent. The engine has the last word on both, so that client and broker can't disagree.
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
"""As a rule: the field must be there, whatever its value is."""


@final
@dataclass(frozen=True, slots=True)
class Expr:
    """A CEL expression that the broker evaluates; made by expr()."""

    text: str

    def __str__(self) -> str:
        return self.text


def expr(text: str) -> Expr:
    """A CEL expression, as the rule of one field (`value` is that field) or for a whole message."""
    if not isinstance(text, str):
        raise TypeError(f"expr() takes the text of an expression, not a {type(text).__name__}")
    return Expr(text)


Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | tuple[Value, ...] | Mapping[str, Value] | None"
"""What a field may hold; enumerations count as their values."""
Fields: TypeAlias = Mapping[str, "Value"]
Rule: TypeAlias = Any
"""A text with `*` or `?`: glob; a list, tuple or set: one of; ANY: present; a callable: predicate; a compiled regular expression;
an Expr; anything else: equal, type included."""
Where: TypeAlias = Mapping[str, Rule] | Expr
Extra: TypeAlias = Collection[str] | Callable[[Any, list[str]], object]

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
# What a subclass is to its base, whatever it made of str() and the like.
_EXACT: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)
_BYTES: Final = (bytes, bytearray, memoryview)
_ENCODER: Final = msgspec.msgpack.Encoder()
_ABSENT: Final = object()
_DEEP: Final = 16
"""Lists and dicts may be nested so deep, on the wire."""
_INSIDE: Final = 3
"""How deep the value of a rule lies in all rules."""


def encode_fields(fields: Fields) -> bytes:
    """The MessagePack of a message's fields; empty for none."""
    if not fields:
        return b""
    values: Mapping[str, object] = fields
    if type(fields) is not dict or not _PLAIN.issuperset(map(type, fields.values())):
        values = {name: _plain(name, value) for name, value in fields.items()}
    try:
        encoded = _ENCODER.encode(values)
        check_fields(encoded)
    except (InvalidFields, ValueError, OverflowError, TypeError) as error:
        raise _blame(values, error) from error
    return encoded


def _plain(name: str, value: object, depth: int = 0) -> object:
    """The value in types that have a MessagePack form of their own."""
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
        text = f"{_DEEP} lists and dicts in each other are the limit, {_DEEP - _INSIDE} in a rule"
        raise InvalidFields(f"field {name!r} is nested too deep: {text}", name=name)
    if isinstance(value, (list, tuple)):
        return [_plain(name, item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(name, item, depth + 1) for key, item in value.items()}
    hint = "; give a list" if isinstance(value, (set, frozenset)) else ""
    raise InvalidFields(f"field {name!r} is a {type(value).__name__}, which a field can't hold{hint}", name=name)


def _blame(values: Mapping[Any, object], error: Exception) -> InvalidFields:
    """The error with the name of the first field that is wrong by itself."""
    for name, value in values.items():
        if not isinstance(name, str):
            return InvalidFields(f"the name of a field is text, not {name!r}", name=str(name))
        try:
            check_fields(_ENCODER.encode({name: value}))
        except InvalidFields as wrong:
            return InvalidFields(wrong.reason, name=name)
        except (ValueError, OverflowError, TypeError) as wrong:
            return InvalidFields(f"field {name!r}: {wrong}", name=name)
    return InvalidFields(str(error))


class Addressed(Protocol):
    """What rules see of a message."""

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
    """The rules of a subscription: what the broker asks, and what is left for the client to ask."""

    wire: bytes
    """For SUBSCRIBE; empty if the broker has nothing to ask."""
    names: frozenset[str] = frozenset()
    """The fields that rules name."""
    predicates: tuple[tuple[str, Callable[[Any], object]], ...] = ()
    extra: Callable[[Any, list[str]], object] | None = None

    @property
    def local(self) -> bool:
        """Whether the client has something to ask."""
        return bool(self.predicates) or self.extra is not None

    def accepts(self, message: Addressed, report: Callable[[Exception], object]) -> bool:
        """Ask the client's part; one that raises is no match, and its error goes to `report`."""
        try:
            for name, predicate in self.predicates:
                value = _seen(message, name)
                if value is _ABSENT or not predicate(value):
                    return False
            if self.extra is not None:
                more = [name for name in message.fields if name not in self.names]
                return bool(self.extra(message, more))  # noqa: S610, no database here
        except Exception as error:  # noqa: BLE001, the predicate is the user's code
            report(error)
            return False
        return True


def _seen(message: Addressed, name: str) -> object:
    match name:
        case ".id":
            return message.sender or message.id[:16]
        case ".ts":
            return message.time_ns
        case "msg":
            return message.payload
    return message.fields.get(name, _ABSENT)


def compile_where(where: Where | None = None, extra: Extra | None = None) -> Compiled:
    """The rules given to a subscription, checked."""
    predicates: list[tuple[str, Callable[[Any], object]]] = []
    rules: list[list[object]] = []
    if isinstance(where, Expr):
        rules.append(["", "cel", where.text])
    elif isinstance(where, Mapping):
        for name, rule in where.items():
            if not isinstance(name, str):
                raise InvalidRule(f"the name of a field is text, not {name!r}", name=str(name))
            if not name and not isinstance(rule, Expr):
                raise InvalidRule(
                    f"the rule {rule!r} has no name: say which field it is for, or give busway.expr(...) in place of the"
                    " dict for a rule about the whole message"
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
    """Let the engine compile them; an error says which field's rule it is about."""
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
    """(op, argument) of a rule, by the kind of what was given."""
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
        return "in", [_wanted(name, _item(name, item), _INSIDE + 1) for item in rule]
    if callable(rule):
        return "call", rule
    return "eq", _wanted(name, rule)


def _item(name: str, item: object) -> object:
    """One of the values of a list, which is not the place for another rule."""
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
        f"rule for {name!r}: a list holds the values that a field may have, not {kind}; a field has one rule",
        name=name,
    )


def _wanted(name: str, value: object, depth: int = _INSIDE) -> object:
    """A value to compare with, in types that have a MessagePack form of their own."""
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
            "extra= takes a set or list with the names of fields that may be there besides, or a function that gets the"
            f" message and the list of other names, not {extra!r}"
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
    """The text of a pattern in the engine's syntax; what would mean something else there is refused."""
    text = pattern.pattern
    if not isinstance(text, str):
        raise InvalidRule(f"rule for {name!r}: a regular expression on text is needed, this one is on bytes", name=name)
    if pattern.flags & re.ASCII:
        raise InvalidRule(f"rule for {name!r}: re.ASCII is not supported; write [0-9] for \\d and so on", name=name)
    verbose = bool(pattern.flags & re.VERBOSE)
    flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    try:
        inner = "".join(_pieces(text, verbose=verbose))
    except ValueError as error:
        reason = f"rule for {name!r}: {text!r} has {error}; the broker's engine has the syntax of Rust's crate regex"
        raise InvalidRule(reason, name=name) from None
    # In verbose mode the text may end in a comment, which a new line ends.
    return f"(?{flags}:{inner}{chr(10) * verbose})"


def _pieces(text: str, *, verbose: bool) -> Iterator[str]:
    at = 0
    inside = False  # a class [...], where only escapes and its end have a meaning
    while found := _PIECE.match(text, at):
        kind = found.lastgroup
        piece = found[0] if kind == "escape" or not inside else text[at]
        at += len(piece)
        if kind == "escape":
            if "1" <= piece[1] <= "9":
                raise ValueError(f"the reference {piece} to a group")
            # The engine has other words for the end of the text, and gives these brackets a meaning.
            yield {"\\Z": "\\z", "\\<": "<", "\\>": ">"}.get(piece, piece)
        elif inside:
            inside = piece != "]"
            if piece == "-" and text[at : at + 1] == "-":
                raise ValueError("-- in a class, where one of them is to be written \\-")
            # Plain characters in Python's classes, but not in the engine's.
            special = piece in "[&~" or (verbose and (piece.isspace() or piece == "#"))
            yield f"\\x{ord(piece):02x}" if special else piece
        elif kind == "look":
            raise ValueError(f"{piece}, which looks around, refers to a group or is atomic")
        elif kind == "possessive":
            raise ValueError(f"the possessive repetition {piece}")
        else:
            inside = kind == "open"
            yield piece.replace("]", "\\]") if inside else piece
