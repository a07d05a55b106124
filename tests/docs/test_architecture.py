"""The architecture page against the repository: each folder has its line, and each walk can be followed from file to file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

MOST_FILES = 15
RETURNS = 2
LIMITS = {
    "Publish": 14,
    "Durable publish": 12,
    "Take and acknowledge": 12,
    "Shared request": 9,
    "Forward over a link": 12,
    "Mirrored acknowledgement": 12,
    "JSON `pub`": 9,
    "Spark micro-batch": 8,
}
STEP = re.compile(r"^\d+\. `([\w/.-]+)` `(\w+)`(?: \(([^)]*)\))?: ", re.MULTILINE)
QUESTIONS = 11


def folders() -> set[str]:
    """Those of the sources that have files."""
    roots = [ROOT / "src" / "busway", *ROOT.glob("crates/*/src")]
    every = {path.parent for root in roots for kind in ("py", "rs") for path in root.rglob(f"*.{kind}")}
    return {str(folder.relative_to(ROOT)) for folder in every}


def section(title: str) -> str:
    return PAGE.split(f"\n{title}\n", 1)[1]


def walk(name: str) -> list[tuple[str, str, str]]:
    text = section(f"### {name}").split("\n##", 1)[0]
    steps = STEP.findall(text)
    assert len(steps) == len(re.findall(r"^\d+\. ", text, re.MULTILINE)), (
        "a step that does not name a file and a function"
    )
    return steps


def test_the_tree_is_that_of_the_repository() -> None:
    table = section("## Where things are").split("\n## ", 1)[0]
    listed = re.findall(r"^\| `([\w/.-]+)` \| \S", table, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == folders()


def test_there_are_eight_walks() -> None:
    assert re.findall(r"^### (.*)$", section("## Eight walks").split("\n## ", 1)[0], re.MULTILINE) == list(LIMITS)


@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_is_short(name: str) -> None:
    files = [file for file, _, _ in walk(name)]
    returns = sum(file in files[:at] and files[at - 1] != file for at, file in enumerate(files))
    assert len(set(files)) <= LIMITS[name]
    assert returns <= RETURNS


@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_can_be_followed(name: str) -> None:
    """Each step's function is defined in its file, and called by an earlier file, unless the step says how it is reached."""
    earlier: list[str] = []
    for file, function, way in walk(name):
        text = (ROOT / file).read_text()
        assert re.search(rf"\b(def|class|fn|struct) {function}\b", text), f"{file} has no {function}"
        if word := re.match(r"via `(\w+)`", way):
            assert word[1] in text, (file, word[1])
            assert any(word[1] in one for one in earlier), f"no earlier file of the walk has {word[1]}"
        elif earlier and not way:
            assert any(re.search(rf"\b{function}\b", one) for one in earlier), f"no earlier file mentions {function}"
        earlier.append(text)


def test_no_folder_has_too_many_files() -> None:
    counts = {
        folder: sum(one.suffix in {".py", ".pyi", ".rs"} for one in (ROOT / folder).iterdir()) for folder in folders()
    }
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_the_questions_have_answers() -> None:
    table = CONTRIBUTING.split("## Where is it?", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([A-Z][^|]*\?) \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == QUESTIONS
    for question, answer in rows:
        paths = re.findall(r"`([\w/.-]+)`", answer)
        assert paths, question
        for path in paths:
            assert (ROOT / path).exists(), path
