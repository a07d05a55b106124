"""Reads docs/protocol.md: its tables are data for the tests."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol.md"


class Vector(NamedTuple):
    name: str
    way: str
    data: bytes
    meaning: str

    @property
    def text_free(self) -> bool:
        return "text free" in self.meaning


class Step(NamedTuple):
    client: str
    way: str
    frames: tuple[str, ...]


class Refusal(NamedTuple):
    name: str
    when: str
    data: bytes
    code: int


@cache
def table(heading: str) -> tuple[tuple[str, ...], ...]:
    """The rows of the first table below a heading, cells stripped of blanks and of single back ticks around them."""
    text = PAGE.read_text(encoding="utf-8")
    lines = iter(text.splitlines())
    for line in lines:
        if line.strip("# ") == heading and line.startswith("#"):
            break
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append(tuple(cell.strip().strip("`") for cell in line.strip("|").split("|")))
        elif rows or line.startswith("#"):
            break
    assert rows, f"no table below the heading {heading!r}"
    return tuple(rows[2:])


@cache
def vectors() -> dict[str, Vector]:
    found = [Vector(name, way, bytes.fromhex(data), meaning) for name, way, data, meaning in table("Vectors of frames")]
    assert len({vector.name for vector in found}) == len(found)
    return {vector.name: vector for vector in found}


@cache
def link_vectors() -> dict[str, Vector]:
    found = [Vector(name, way, bytes.fromhex(data), meaning) for name, way, data, meaning in table("Vectors of links")]
    return {vector.name: vector for vector in found}


@cache
def exchange() -> list[Step]:
    return [Step(client, way, tuple(frames.split())) for client, way, frames, _ in table("An exchange")]


@cache
def refusals() -> list[Refusal]:
    return [Refusal(name, when, bytes.fromhex(data), int(code)) for name, when, data, code, _ in table("Refused")]


@cache
def kinds() -> dict[int, tuple[str, str]]:
    """Kind -> (name, direction) of the table of frames at the top of the page."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `0x")]
    rows = [row for row in rows if row[1].strip().isupper()]
    return {int(kind.strip(" `"), 16): (name.strip(), way.strip()) for kind, name, way in rows}


@cache
def codes() -> dict[str, tuple[int, bool]]:
    """Name -> (code, connection survives)."""
    return {name: (int(code), survives == "yes") for code, name, survives, _ in table("Error codes")}
