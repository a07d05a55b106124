"""Sources and sinks that an SQL file of a pipeline declares: found, checked, and taken out of the text for Spark. Values; no I/O.

Spark's pipelines know tables, views and flows, but no statement for where rows come from and go to. Two more are understood here, as
Spark writes such things elsewhere::

    CREATE TEMPORARY VIEW orders (id BIGINT, amount DOUBLE) USING busway OPTIONS (topics 'orders/**');
    CREATE SINK alerts USING busway OPTIONS (topic 'alerts');

Spark's own statement for a flow (`CREATE FLOW f AS INSERT INTO alerts BY NAME SELECT …`) finds tables only. If it names a sink, Spark gets
a view with its query instead, and the flow from there into the sink is one of ours.
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


class Mistake(ValueError):  # noqa: N818 - of whoever wrote the file
    """A statement that can't be meant; `line` is the one of the file."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    form: str
    options: dict[str, str] = field(default_factory=dict)
    schema: str = ""
    """Columns of the payload, as SQL writes them; empty: it stays as it is."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    form: str
    options: dict[str, str] = field(default_factory=dict)
    line: int = 0


class Flow(NamedTuple):
    """From a view into a sink."""

    name: str
    sink: str
    view: str


class Column(NamedTuple):
    """One of a schema."""

    name: str
    type: str
    required: bool


class Declared(NamedTuple):
    sources: list[Source]
    sinks: list[Sink]
    flows: list[Flow]
    rest: str
    """The statements for Spark, on the lines where they were; empty if there are none."""


class _Token(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int

    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def parse(text: str) -> Declared:
    """Find the statements of both kinds. Raises Mistake."""
    found = Declared([], [], [], "")
    rest = list(text)
    others: list[_Reader] = []
    for begin, end, tokens in _statements(text):
        reader = _Reader(text, tokens)
        one = _source(reader) or _sink(reader)
        if one is None:
            others += [reader] if tokens else []
            continue
        (found.sources if isinstance(one, Source) else found.sinks).append(one)  # type: ignore[arg-type]
        rest[begin:end] = ["\n" if letter == "\n" else " " for letter in rest[begin:end]]
    _unique([*found.sources, *found.sinks])
    sinks = {one.name.lower(): one.name for one in found.sinks}
    for reader in others:
        head = _flow(reader)
        if head is None or head.sink.lower() not in sinks:
            continue
        found.flows.append(head._replace(sink=sinks[head.sink.lower()]))
        begin, end = reader.passed
        lines = "\n" * text.count("\n", begin, end)
        view = head.view.replace("`", "``")
        # One piece, in place of the first letter; so what lies behind keeps its line.
        rest[begin:end] = [f"CREATE TEMPORARY VIEW `{view}` AS{lines} ", *[""] * (end - begin - 1)]
    return found._replace(rest="".join(rest) if others else "")


def columns(schema: str) -> list[Column]:
    """The columns of `id BIGINT NOT NULL, tags ARRAY<STRING>`. Raises Mistake."""
    found: list[Column] = []
    for tokens in _split([token for token in _tokens(schema) if token.kind != "space"]):
        if len(tokens) < 2 or tokens[0].kind not in {"word", "quoted"}:
            raise Mistake(1, f"{schema!r} is no list of columns: write (id BIGINT, amount DOUBLE)")
        required = [one.upper() for one in tokens[-2:]] == ["NOT", "NULL"]
        if tokens[1].text == ":":
            del tokens[1]
        kind = tokens[1:-2] if required else tokens[1:]
        if not kind:
            raise Mistake(1, f"the column {_name(tokens[0])!r} has no type")
        found.append(Column(_name(tokens[0]), schema[kind[0].begin : kind[-1].end], required))
    return found


def _source(reader: "_Reader") -> Source | None:
    reader.restart()
    if not reader.words("CREATE"):
        return None
    if reader.words("OR") and not reader.words("REPLACE"):
        return None
    if not (reader.words("TEMPORARY") or reader.words("TEMP")) or not reader.words("VIEW"):
        return None
    name = reader.name()
    schema = reader.inside() if reader.peek("(") else ""
    if name is None or not reader.words("USING"):
        return None  # a view with a query: Spark's business
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
    if not (reader.words("CREATE") and reader.words("SINK")):
        return None
    name = reader.name()
    if name is None or not reader.words("USING"):
        raise Mistake(reader.line, "write CREATE SINK name USING busway OPTIONS (topic 'name')")
    sink = Sink(name, reader.form(), reader.options(), reader.line)
    reader.end()
    return sink


def _flow(reader: "_Reader") -> Flow | None:
    """The head of a flow into a table or sink, up to its query."""
    reader.restart()
    if not (reader.words("CREATE") and reader.words("FLOW")):
        return None
    name = reader.name()
    if name is None or not (reader.words("AS") and reader.words("INSERT") and reader.words("INTO")):
        return None
    sink = reader.name()
    if sink is None or not (reader.words("BY") and reader.words("NAME")):
        return None
    return Flow(name, sink, f"{name}_rows")


def _unique(declared: list[Source | Sink]) -> None:
    known: dict[str, int] = {}
    for one in declared:
        if (before := known.setdefault(one.name.lower(), one.line)) != one.line:
            raise Mistake(one.line, f"{one.name!r} is declared on line {before} already")


class _Reader:
    """The tokens of a statement, one after another."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    @property
    def line(self) -> int:
        return self._text.count("\n", 0, self._tokens[0].begin) + 1 if self._tokens else 1

    @property
    def passed(self) -> tuple[int, int]:
        """Where what has been read begins and ends."""
        return self._tokens[0].begin, self._tokens[self._at - 1].end

    def restart(self) -> None:
        self._at = 0

    def peek(self, mark: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text == mark

    def words(self, word: str) -> bool:
        """Whether this word is next; then it is passed."""
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
            raise Mistake(self._here(), "USING wants the name of a format: busway")
        return name.lower()

    def inside(self) -> str:
        """The text between the brackets that begin here."""
        opened = self._at
        depth = 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            depth += (token.text == "(") - (token.text == ")")
            self._at += 1
            if not depth:
                return self._text[self._tokens[opened].end : token.begin]
        raise Mistake(self.line, "a bracket is not closed")

    def options(self) -> dict[str, str]:
        if not self.words("OPTIONS"):
            return {}
        if not self.peek("("):
            raise Mistake(self._here(), "OPTIONS wants a list: OPTIONS (topics 'orders/**')")
        line, opened = self._here(), self._at
        self.inside()
        found: dict[str, str] = {}
        for pair in _split(self._tokens[opened + 1 : self._at - 1]):
            words = [one for one in pair if one.text != "="]
            if (
                len(words) != 2
                or words[0].kind in {"number", "mark"}
                or words[1].kind not in {"text", "number", "word"}
            ):
                said = self._text[pair[0].begin : pair[-1].end] if pair else ","
                raise Mistake(line, f"the option {said} is not clear: write name 'value'")
            key, value = (_name(words[0]), _value(words[1]))
            if key.lower() in {one.lower() for one in found}:
                raise Mistake(line, f"the option {key} is given twice")
            found[key] = value
        return found

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise Mistake(self._here(), f"{self._tokens[self._at].text!r} is too much here")

    def _here(self) -> int:
        place = self._tokens[min(self._at, len(self._tokens) - 1)].begin
        return self._text.count("\n", 0, place) + 1


def _tokens(text: str) -> list[_Token]:
    return [_Token(one.lastgroup or "", one[0], one.start(), one.end()) for one in _TOKEN.finditer(text)]


def _statements(text: str) -> list[tuple[int, int, list[_Token]]]:
    """Where each begins and ends (with its semicolon), and its tokens without space and comments."""
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
    """At the commas outside of brackets."""
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
