"""Every block of the pages about Spark runs, in the order of the page, and prints what the page says.

As in tests/docs/test_docs.py, but in one session, since a new one for each command would take a quarter of a minute: ```python blocks and
commands that begin with `$ busway` run in this process, against a bus with the data folder `data` (the default address is replaced by
its own). A block with a title, ```sql title="…", is that file. A ```text block after a ```python block is what that prints. The output
of a command is compared if the page shows some; a line `…` stands for any number of lines.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busway.cli.app import app
from tests.support.spark.bus import served

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs" / name for name in ("howto/spark.md", "howto/lake.md", "tutorial-pipeline.md")]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
DEFAULT = "tcp://127.0.0.1:7420"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "data") as bus:
        # Not by BUSWAY_URL: with that a command means another thing than without.
        monkeypatch.delenv("BUSWAY_URL", raising=False)
        for module in ("busway.cli.lake.job", "busway.client.bus"):
            monkeypatch.setattr(f"{module}.DEFAULT_URL", bus.url)
        yield bus.url


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(spark: SparkSession, page: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # one session for all
    printed = ""
    text = page.read_text()
    for fence in FENCE.finditer(text):
        # Paths are those of the folder in which Spark was started, and that is another one.
        kind, info, body = fence[1], fence[2], fence[3].replace(DEFAULT, url).replace("./", f"{Path.cwd()}/")
        where = f"{page.name}:{text.count(chr(10), 0, fence.start()) + 1}"
        if title := TITLE.search(info):
            Path(title[1]).write_text(body)
        elif kind == "python":
            printed = captured(lambda code=body, name=where: exec(compile(code, name, "exec"), namespace))
        elif kind == "text" and printed:
            assert agrees(printed, body), f"{where}: it prints\n{printed}"
            printed = ""
        elif kind == "console":
            console(body, where)


def console(body: str, where: str) -> None:
    """Run its commands one after the other, each with the lines behind it as its output."""
    parts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    for part in parts:
        command, _, shown = part.partition("\n")
        if not command.startswith("busway ") or command.startswith("busway serve"):
            continue
        words = shlex.split(command)[1:]
        printed = captured(lambda given=words: ended(given, where))
        assert not shown.strip() or agrees(printed, shown), f"{where}: {command} prints\n{printed}"


def ended(words: list[str], where: str) -> None:
    try:
        app(words, prog_name="busway")
    except SystemExit as end:
        assert not end.code, f"{where}: busway {shlex.join(words)} ends with {end.code}"


def captured(what: Any) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        what()
    return output.getvalue()


def agrees(printed: str, shown: str) -> bool:
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line.rstrip()) + r"\s*\n"
        for line in shown.strip().splitlines()
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed.strip().splitlines())) is not None
