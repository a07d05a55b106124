"""Parser of the sources and sinks in an SQL pipeline: finds, checks and removes them from the text for Spark.

The runner calls it; it does no I/O. Spark's pipelines have statements for tables, views and flows, but none for sources
and sinks. This module adds two, in the style of Spark's SQL::

    CREATE TEMPORARY VIEW orders (id BIGINT, amount DOUBLE) USING busway OPTIONS (topics 'orders/**');
    CREATE SINK alerts USING busway OPTIONS (topic 'alerts');

Spark's statement for a flow (`CREATE FLOW f AS INSERT INTO alerts BY NAME SELECT …`) accepts only tables as target. If
it names a sink, this module gives Spark a view with the query, and the runner adds a flow from the view into the sink.
"""

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>[A-Za-z_][\w]*)
    |(?P<number>-?\d+(?:\.\d+)?)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


class Mistake(ValueError):  # noqa: N818 - a mistake in the file of the user
    """A wrong statement. `line` is its line in the file."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Source:
    """A declared source."""

    name: str
    form: str
    options: dict[str, str] = field(default_factory=dict)
    schema: str = ""
    """Columns of the payload in SQL. Empty: the payload is not parsed."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Sink:
    """A declared sink."""

    name: str
    form: str
    options: dict[str, str] = field(default_factory=dict)
    line: int = 0


class Flow(NamedTuple):
    """A flow from a view into a sink."""

    name: str
    sink: str
    view: str


class Column(NamedTuple):
    """A column of a schema."""

    name: str
    type: str
    required: bool


class Declared(NamedTuple):
    """The declarations of a file, and its remaining text."""

    sources: list[Source]
    sinks: list[Sink]
    flows: list[Flow]
    rest: str
    """The statements for Spark, on their original lines. Empty if there are none."""


class _Token(NamedTuple):
    """A token of SQL, with its place in the text."""

    kind: str
    text: str
    begin: int
    end: int

    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def parse(text: str) -> Declared:
    """Parse the sources, sinks and flows of a file. Raises Mistake."""
    found = Declared([], [], [], "")
    rest = list(text)
    others: list[_Reader] = []
    for begin, end, tokens in _statements(text):
        reader = _Reader(text, tokens)
        declaration = _source(reader) or _sink(reader)
        if declaration is None:
            others += [reader] if tokens else []
            continue
        (found.sources if isinstance(declaration, Source) else found.sinks).append(declaration)  # type: ignore[arg-type]
        rest[begin:end] = ["\n" if letter == "\n" else " " for letter in rest[begin:end]]
    _unique([*found.sources, *found.sinks])
    sinks = {declaration.name.lower(): declaration.name for declaration in found.sinks}
    for reader in others:
        head = _flow(reader)
        if head is None or head.sink.lower() not in sinks:
            continue
        found.flows.append(head._replace(sink=sinks[head.sink.lower()]))
        begin, end = reader.span
        lines = "\n" * text.count("\n", begin, end)
        view = head.view.replace("`", "``")
        # The text replaces the first letter, so that the following statements keep their positions.
        rest[begin:end] = [f"CREATE TEMPORARY VIEW `{view}` AS{lines} ", *[""] * (end - begin - 1)]
    return found._replace(rest="".join(rest) if others else "")


def columns(schema: str) -> list[Column]:
    """Parse columns such as `id BIGINT NOT NULL, tags ARRAY<STRING>`. Raises Mistake."""
    found: list[Column] = []
    for tokens in _split([token for token in _tokens(schema) if token.kind != "space"]):
        if len(tokens) < 2 or tokens[0].kind not in {"word", "quoted"}:
            raise Mistake(1, f"{schema!r} is not a list of columns: write (id BIGINT, amount DOUBLE)")
        required = [token.upper() for token in tokens[-2:]] == ["NOT", "NULL"]
        if tokens[1].text == ":":
            del tokens[1]
        kind = tokens[1:-2] if required else tokens[1:]
        if not kind:
            raise Mistake(1, f"the column {_name(tokens[0])!r} has no type: write (id BIGINT, amount DOUBLE)")
        found.append(Column(_name(tokens[0]), schema[kind[0].begin : kind[-1].end], required))
    return found


def _source(reader: "_Reader") -> Source | None:
    reader.restart()
    if not reader.accept("CREATE"):
        return None
    if reader.accept("OR") and not reader.accept("REPLACE"):
        return None
    if not (reader.accept("TEMPORARY") or reader.accept("TEMP")) or not reader.accept("VIEW"):
        return None
    name = reader.name()
    schema = reader.inside() if reader.peek("(") else ""
    if name is None or not reader.accept("USING"):
        return None  # a view with a query is for Spark
    line = reader.line
    source = Source(name, reader.form(), reader.options(), schema.strip(), line)
    reader.end()
    if source.schema:
        try:
            columns(source.schema)
        except Mistake as mistake:
            raise Mistake(line, str(mistake).partition(": ")[2]) from None
    return source


def _sink(reader: "_Reader") -> Sink | None:
    reader.restart()
    if not (reader.accept("CREATE") and reader.accept("SINK")):
        return None
    name = reader.name()
    if name is None or not reader.accept("USING"):
        raise Mistake(reader.line, "the sink is incomplete: write CREATE SINK name USING busway OPTIONS (topic 'name')")
    sink = Sink(name, reader.form(), reader.options(), reader.line)
    reader.end()
    return sink


def _flow(reader: "_Reader") -> Flow | None:
    """Parse the head of a flow into a table or sink, up to its query."""
    reader.restart()
    if not (reader.accept("CREATE") and reader.accept("FLOW")):
        return None
    name = reader.name()
    if name is None or not (reader.accept("AS") and reader.accept("INSERT") and reader.accept("INTO")):
        return None
    sink = reader.name()
    if sink is None or not (reader.accept("BY") and reader.accept("NAME")):
        return None
    return Flow(name, sink, f"{name}_rows")


def _unique(declared: list[Source | Sink]) -> None:
    known: dict[str, int] = {}
    for item in declared:
        if (before := known.setdefault(item.name.lower(), item.line)) != item.line:
            raise Mistake(item.line, f"{item.name!r} is declared on line {before} already: choose another name")


class _Reader:
    """Reads the tokens of a statement in order."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    @property
    def line(self) -> int:
        return self._text.count("\n", 0, self._tokens[0].begin) + 1 if self._tokens else 1

    @property
    def span(self) -> tuple[int, int]:
        """The begin and end of the tokens that were read."""
        return self._tokens[0].begin, self._tokens[self._at - 1].end

    def restart(self) -> None:
        self._at = 0

    def peek(self, mark: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text == mark

    def accept(self, word: str) -> bool:
        """Read the next token if it is this word. Returns False otherwise."""
        if self._at < len(self._tokens) and self._tokens[self._at].upper() == word:
            self._at += 1
            return True
        return False

    def name(self) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at].kind in {"word", "quoted"}:
            self._at += 1
            return _name(self._tokens[self._at - 1])
        return None

    def form(self) -> str:
        name = self.name()
        if name is None:
            raise Mistake(self._here(), "USING needs the name of a format: write USING busway")
        return name.lower()

    def inside(self) -> str:
        """Read and return the text between the next brackets."""
        opened = self._at
        depth = 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            depth += (token.text == "(") - (token.text == ")")
            self._at += 1
            if not depth:
                return self._text[self._tokens[opened].end : token.begin]
        raise Mistake(self.line, "a bracket is not closed: add )")

    def options(self) -> dict[str, str]:
        if not self.accept("OPTIONS"):
            return {}
        if not self.peek("("):
            raise Mistake(self._here(), "OPTIONS needs a list: write OPTIONS (topics 'orders/**')")
        line, opened = self._here(), self._at
        self.inside()
        found: dict[str, str] = {}
        for pair in _split(self._tokens[opened + 1 : self._at - 1]):
            words = [token for token in pair if token.text != "="]
            if (
                len(words) != 2
                or words[0].kind in {"number", "mark"}
                or words[1].kind not in {"text", "number", "word"}
            ):
                found_text = self._text[pair[0].begin : pair[-1].end] if pair else ","
                raise Mistake(line, f"the option {found_text} can't be parsed: write name 'value'")
            key, value = (_name(words[0]), _value(words[1]))
            if key.lower() in {name.lower() for name in found}:
                raise Mistake(line, f"the option {key} is given twice: keep one of them")
            found[key] = value
        return found

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise Mistake(
                self._here(), f"{self._tokens[self._at].text!r} is unexpected here: end the statement with a semicolon"
            )

    def _here(self) -> int:
        begin = self._tokens[min(self._at, len(self._tokens) - 1)].begin
        return self._text.count("\n", 0, begin) + 1


def _tokens(text: str) -> list[_Token]:
    return [_Token(match.lastgroup or "", match[0], match.start(), match.end()) for match in _TOKEN.finditer(text)]


def _statements(text: str) -> list[tuple[int, int, list[_Token]]]:
    """Split into statements: begin, end (with the semicolon), and the tokens without space and comments."""
    found: list[tuple[int, int, list[_Token]]] = []
    begin, tokens = 0, list[_Token]()
    for token in _tokens(text):
        if token.text == ";" and token.kind == "mark":
            found.append((begin, token.end, tokens))
            begin, tokens = token.end, []
        elif token.kind != "space":
            tokens.append(token)
    found.append((begin, len(text), tokens))
    return found


def _split(tokens: list[_Token]) -> list[list[_Token]]:
    """Split tokens at the commas outside of brackets."""
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in {"(", "<"}) - (token.text in {")", ">"})
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [] if parts == [[]] else parts


def _name(token: _Token) -> str:
    if token.kind == "quoted":
        return token.text[1:-1].replace("``", "`")
    return _value(token)


def _value(token: _Token) -> str:
    if token.kind != "text":
        return token.text
    quote = token.text[0]
    return re.sub(r"\\(.)", r"\1", token.text[1:-1].replace(quote * 2, quote))
