"""Typed columns: decodes payloads of declared types into columns beside the payload. The source and the lake use them.

A declaration is a protocol class or a JSON Schema, and a topic pattern. Its schema is kept as plain JSON, so a Spark task
decodes payloads without the class. A payload that does not fit leaves its column empty and has a text in the column
`reason`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from busway._core import Selection, check_pattern
from busway.client.typed.protocol import kind_for
from busway.errors import InvalidTopic
from busway.spark.columns import arrow_schema as plain_schema, conform, covered
from busway.spark.options import COLUMNS

REASON: Final = "reason"
"""The column that says why a payload does not fit its type."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN: Final = {*COLUMNS, REASON, "date"}
_INT64: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
_SCALARS: Final[dict[str, tuple[Any, pa.DataType, str]]] = {
    "integer": (Annotated[int, _INT64], pa.int64(), "bigint"),
    "number": (float, pa.float64(), "double"),
    "boolean": (bool, pa.bool_(), "boolean"),
    "string": (str, pa.string(), "string"),
    "date-time": (datetime, pa.timestamp("us", tz="UTC"), "timestamp"),
    "date": (date, pa.date32(), "date"),
    "base64": (bytes, pa.binary(), "binary"),
}
"""The type of the decoder, of Arrow and of Spark, by the type, format or encoding of a JSON Schema."""


make_typed_dict: Final[Any] = TypedDict  # type checkers know only types with a fixed name


class TypeConflict(ValueError):  # noqa: N818 - named after what it reports
    """A declaration is not possible, or contradicts an earlier one of the same name."""


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type: a scalar, a list (`items`), a map of texts (`values`), or a struct (`fields`)."""

    scalar: str = ""
    items: "Node | None" = None
    values: "Node | None" = None
    fields: dict[str, "Node"] = {}
    required: tuple[str, ...] = ()
    nullable: bool = False
    choices: tuple[str | int, ...] = ()


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The type of the messages of a topic pattern, and the name of its column."""

    name: str
    pattern: str
    encoding: Literal["json", "msgpack"]
    type: Node


def declared(what: Any) -> Declared:
    """Return the declaration of a protocol class, or of a text `module:Class` or `PATTERN=FILE` with a JSON Schema."""
    if isinstance(what, Declared):
        return what
    if isinstance(what, str):
        pattern, found, file = what.partition("=")
        return _of_file(pattern, Path(file)) if found else _of_class(_imported(what))
    return _of_class(what)


def _of_class(cls: Any) -> Declared:
    kind = kind_for(cls)
    schema = cls.model_json_schema() if hasattr(cls, "model_json_schema") else msgspec.json.schema(cls)
    return _made(cls.__name__, kind.channel_topic(None) or "**", kind.codec.encoding, schema)


def _of_file(pattern: str, file: Path) -> Declared:
    try:
        schema = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise TypeConflict(f"{file} can't be read as a JSON Schema: {error}") from error
    name = str(schema.get("title", "")) if isinstance(schema, dict) else ""
    return _made(name if _NAME.fullmatch(name) else file.name.partition(".")[0], pattern, "json", schema)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TypeConflict(f"the type {path!r} can't be imported: give module:Class, or PATTERN=FILE") from error


def _made(name: str, pattern: str, encoding: Literal["json", "msgpack"], schema: Any) -> Declared:
    if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
        raise TypeConflict(f"a typed column can't have the name {name!r}: rename the class, or the title of the schema")
    try:
        check_pattern(pattern)
    except InvalidTopic as error:
        raise TypeConflict(f"the topics of the type {name} can't be {pattern!r}: {error}") from error
    node = _node(schema, schema, ()) if isinstance(schema, dict) else None
    if node is None or not node.fields:
        raise TypeConflict(f"the type {name} has no fields that can be columns: declare an object with properties")
    return Declared(name, pattern, encoding, node)


def _node(schema: Mapping[str, Any], root: Mapping[str, Any], seen: tuple[str, ...]) -> Node | None:
    """Return the type of a JSON Schema. None: it can't be a column (a union, a tuple, a recursive type)."""
    if "$ref" in schema:
        path = str(schema["$ref"])
        if path in seen or not path.startswith("#/"):
            return None
        target: Any = root
        for step in path[2:].split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        return _node(target, root, (*seen, path))
    options = schema.get("anyOf") or schema.get("oneOf") or ([] if "type" in schema else schema.get("allOf", []))
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if not options and len(kinds) > 1:
        options = [{**schema, "type": kind} for kind in kinds]
    if options:
        rest = [option for option in options if option.get("type") != "null"]
        found = _node(rest[0], root, seen) if len(rest) == 1 else None
        nullable = len(rest) < len(options)
        return msgspec.structs.replace(found, nullable=found.nullable or nullable) if found else None
    choices = tuple(schema.get("enum", [schema["const"]] if "const" in schema else []))
    if choices and not kinds and len({type(choice) for choice in choices}) == 1:
        kinds = ["string" if isinstance(choices[0], str) else "integer"]
    kind = kinds[0] if kinds else ""
    if kind == "object":
        return _object(schema, root, seen)
    if kind == "array":
        items = schema.get("items")
        inner = _node(items, root, seen) if isinstance(items, dict) and "prefixItems" not in schema else None
        return Node(items=inner) if inner else None
    if kind == "string":
        kind = next((name for name in (schema.get("format"), schema.get("contentEncoding")) if name in _SCALARS), kind)
    valid = all(isinstance(choice, str | int) and not isinstance(choice, bool) for choice in choices)
    return Node(scalar=kind, choices=choices if valid else ()) if kind in _SCALARS else None


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], seen: tuple[str, ...]) -> Node | None:
    fields: dict[str, Node] = {}
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, dict) and (found := _node(inner, root, seen)):
            if name.lower() in {known.lower() for known in fields}:
                raise TypeConflict(f"the field {name!r} exists twice, because columns ignore upper and lower case")
            fields[name] = found
    if fields:
        return Node(fields=fields, required=tuple(name for name in schema.get("required", ()) if name in fields))
    more = schema.get("additionalProperties")
    inner = _node(more, root, seen) if isinstance(more, dict) and more else None
    return Node(values=inner) if inner else None


def evolved(before: Declared | None, now: Declared) -> Declared:
    """Return a declaration with the fields of both. Raises TypeConflict if a field has another type now."""
    if before is None:
        return now
    return msgspec.structs.replace(now, type=_merged(now.name, before.type, now.type))


def _merged(name: str, before: Node, now: Node) -> Node:
    if before.fields and now.fields:
        fields = {
            key: _merged(f"{name}.{key}", before.fields[key], now.fields[key])
            if key in before.fields and key in now.fields
            else before.fields.get(key) or now.fields[key]
            for key in {**before.fields, **now.fields}
        }
        return msgspec.structs.replace(now, fields=fields)
    if before.items and now.items:
        return msgspec.structs.replace(now, items=_merged(f"{name}[]", before.items, now.items))
    if arrow_type(before) != arrow_type(now):
        raise TypeConflict(
            f"the type of {name} is {spark_type(before)} in the lake, and {spark_type(now)} in its declaration: columns keep "
            "their type, so give the new type another name"
        )
    return now


def arrow_type(node: Node) -> pa.DataType:
    if node.fields:
        return pa.struct([(name, arrow_type(inner)) for name, inner in node.fields.items()])
    if node.items:
        return pa.list_(arrow_type(node.items))
    if node.values:
        return pa.map_(pa.string(), arrow_type(node.values))
    return _SCALARS[node.scalar][1]


def spark_type(node: Node) -> str:
    if node.fields:
        return f"struct<{','.join(f'`{name}`:{spark_type(inner)}' for name, inner in node.fields.items())}>"
    if node.items:
        return f"array<{spark_type(node.items)}>"
    if node.values:
        return f"map<string,{spark_type(node.values)}>"
    return _SCALARS[node.scalar][2]


def _python_type(node: Node, name: str = "value") -> Any:
    if node.fields:
        # A TypedDict is decoded into a dict, which pyarrow takes as it is.
        inner = {key: _python_type(field, key) for key, field in node.fields.items()}
        made: Any = make_typed_dict(
            name, {key: found if key in node.required else NotRequired[found] for key, found in inner.items()}
        )
    elif node.items:
        made = list[_python_type(node.items, name)]  # type: ignore[misc]
    elif node.values:
        made = dict[str, _python_type(node.values, name)]  # type: ignore[misc]
    else:
        made = Literal[node.choices] if node.choices else _SCALARS[node.scalar][0]
    return made | None if node.nullable else made


def dump(types: Iterable[Declared]) -> str:
    """Return declarations as JSON, for an option or a table property."""
    return msgspec.json.encode(list(types)).decode()


def load(text: str) -> tuple[Declared, ...]:
    """Parse declarations of dump(). An empty text has none. Raises ValueError."""
    return tuple(msgspec.json.decode(text, type=list[Declared])) if text else ()


def names(types: Sequence[Declared]) -> tuple[str, ...]:
    """Return the names of the typed columns."""
    return (*(one.name for one in types), REASON) if types else ()


def ddl(types: Sequence[Declared]) -> list[str]:
    """Return the typed columns in Spark's DDL."""
    return [f"`{one.name}` {spark_type(one.type)}" for one in types] + ([f"`{REASON}` string"] if types else [])


def arrow_schema(types: Sequence[Declared]) -> list[pa.Field]:
    """Return the typed columns as fields of Arrow."""
    fields = [pa.field(one.name, arrow_type(one.type)) for one in types]
    return [*fields, pa.field(REASON, pa.string())] if types else []


def schema(columns: Sequence[str], types: Sequence[Declared]) -> pa.Schema:
    """Return the Arrow schema of these columns, plain and typed."""
    fields = {field.name: field for field in (*plain_schema(COLUMNS), *arrow_schema(types))}
    return pa.schema([fields[name] for name in columns])


class Decoder:
    """Converts batches of the engine to the columns of Spark, typed columns included."""

    def __init__(self, types: Sequence[Declared], columns: Sequence[str]) -> None:
        self._types = types
        self._typed = set(names(types)) & set(columns)
        self._columns = columns
        self._schema = schema(columns, types)
        plain = [name for name in columns if name not in self._typed]
        self.needed = (*plain, *(name for name in ("topic", "payload") if self._typed and name not in plain))
        """The message columns that a batch must have."""
        self._decode = [_decoder(one) for one in types if self._typed]
        self._selections = [Selection(one.pattern, b"") for one in types if self._typed]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = conform(batch, self.needed)
        if not self._typed:
            return made
        found: dict[str, Any] = dict(zip(made.schema.names, made.columns, strict=True)) | self._typed_columns(made)
        return pa.RecordBatch.from_arrays([found[name] for name in self._columns], schema=self._schema)

    def _typed_columns(self, batch: pa.RecordBatch) -> dict[str, Any]:
        payloads = batch.column("payload")
        reasons: list[str | None] = [None] * batch.num_rows
        left = [True] * batch.num_rows
        found: dict[str, Any] = {}
        for one, selection, decode in zip(self._types, self._selections, self._decode, strict=True):
            values: list[Any] = [None] * batch.num_rows
            for row, chosen in enumerate(covered(batch.column("topic"), [selection]).to_pylist()):
                if chosen and left[row]:  # a topic has the first type whose pattern it matches
                    left[row] = False
                    try:
                        values[row] = decode(payloads[row].as_py())
                    except (ValueError, RecursionError) as error:
                        reasons[row] = f"{one.name}: {error}"
            found[one.name] = pa.array(values, arrow_type(one.type))
        return found | {REASON: pa.array(reasons, pa.string())}


def _decoder(one: Declared) -> Callable[[bytes], Any]:
    type_ = _python_type(one.type, one.name)
    if one.encoding == "msgpack":
        return msgspec.msgpack.Decoder(type_).decode
    return msgspec.json.Decoder(type_).decode
