"""Every Python block of README and docs runs, and so does every `busway` command in them.

The ```python blocks of a page run one after another in one namespace, with `await` allowed at the top, against a server of
the test's own (the default address in a block is replaced by it). A ```text block right after one is what it prints. In
```console blocks the lines that begin with `$ busway` are run; other lines are their output, unless the block also has
commands of other programs. A command ending in `&` runs on while the others do; the line below it is what it says when it is
ready, so that a reader waits for it.
"""

import asyncio
import contextlib
import inspect
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import busway
from tests.support.commands import Nursery
from tests.support.doc_blocks import DEFAULT, blocks, run_block

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "protocol.md")]
SPARK = {"spark.md", "lake.md", "tutorial-pipeline.md"}
"""Pages that tests/spark/lake/test_page.py runs."""
FILES = {"files.md"}
"""Pages that tests/gateway/files/test_page.py runs, in a mount."""
TYPED = {"tutorial.md"}
"""Pages that tests/docs/test_tutorial.py types into terminals."""
RUN = [page for page in PAGES if page.name not in SPARK | FILES | TYPED]
BUSWAY = (sys.executable, "-m", "busway")


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
async def test_python_blocks_run(page, address):
    namespace: dict[str, Any] = {"__name__": "docs"}
    found = blocks(page)
    try:
        for place, block in enumerate(found):
            if block.language != "python":
                continue
            printed = await run_block(block, page, namespace, address)
            after = found[place + 1] if place + 1 < len(found) else None
            if after is not None and after.language == "text" and after.follows:
                assert printed.strip() == after.text.strip(), f"{page.name}:{block.line} prints something else"
    finally:
        for thing in reversed(namespace.values()):
            if isinstance(thing, busway.Bus):
                await thing.close()
        for thing in namespace.values():
            if isinstance(thing, busway.Server):
                await thing.stop()


def console_blocks() -> list[Any]:
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}:{block.line}")
        for page in RUN
        for block in blocks(page)
        if block.language == "console" and "$ busway" in block.text
    ]


@pytest.mark.parametrize("block", console_blocks())
async def test_busway_commands_run(block, address, tmp_path, nursery):
    (tmp_path / "job.json").write_text('{"resize": "cat.png"}\n')
    lines, ready = without_ready_lines(block.text.splitlines())
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    checked = all(command.startswith("busway ") and "|" not in command for command in commands)
    expected = [line for line in lines if not line.startswith("$ ")]
    printed: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for command in commands:
            if not command.startswith("busway ") or re.search(r" [|>] ", command):
                continue
            if command.startswith("busway serve"):
                await serve_and_stop(command)
            elif command.endswith("&"):
                said = ready[command].replace(DEFAULT, address)
                running.append(await stack.enter_async_context(background(command.removesuffix("&"), said)))
            else:
                printed.append(await foreground(command, nursery))
        for process in running:
            async with asyncio.timeout(60):
                printed.append((await process.stdout.read()).decode())
    if checked and expected:
        assert sorted("".join(printed).splitlines()) == sorted(expected)


def without_ready_lines(lines: list[str]) -> tuple[list[str], dict[str, str]]:
    """The other lines, and for each command that runs on the line below it."""
    ready = {
        line.removeprefix("$ "): after
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("$ busway ") and line.endswith("&")
    }
    return [line for place, line in enumerate(lines) if not place or not lines[place - 1].endswith("&")], ready


def arguments(command: str) -> list[str]:
    """Ports of the examples may be taken on this machine."""
    text = command.replace("127.0.0.1:7420", "127.0.0.1:0").replace("127.0.0.1:8000", "127.0.0.1:0")
    words = shlex.split(text)[1:]
    return [*BUSWAY, *words, *(["--tcp", "127.0.0.1:0"] if words == ["serve"] else [])]


async def foreground(command: str, nursery: Nursery) -> str:
    url = os.environ["BUSWAY_URL"]
    asked = command.replace(DEFAULT, url).replace("127.0.0.1:7420", url.removeprefix("tcp://"))
    async with asyncio.timeout(60):
        status, output, errors = await nursery.run(shlex.split(asked)[1:], os.environ, b"")
    assert status == 0, f"{command}: exit status {status}: {errors.decode()}"
    return output.decode()


@contextlib.asynccontextmanager
async def background(command: str, said: str):
    """Started, and ready: the note on stderr has come, as the page shows it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments(command), stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(60):
            note = (await process.stderr.readline()).decode()
        assert note.rstrip("\n") == said, f"{command}: the line below it in the page is another one"
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.communicate()


async def serve_and_stop(command: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments(command), stdout=pipe, stderr=pipe)
    async with asyncio.timeout(60):
        note = (await process.stderr.readline()).decode()
        process.terminate()
        await process.communicate()
    assert "serves" in note
    assert process.returncode == 0


def test_every_link_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_reference_has_every_verb_and_flag():
    from busway.cli.app import app

    reference = (ROOT / "docs/reference/cli.md").read_text()
    commands = [(command.name, command) for command in app.registered_commands]
    for group in app.registered_groups:
        commands += [
            (f"{group.typer_instance.info.name} {one.name}", one) for one in group.typer_instance.registered_commands
        ]
    for name, command in commands:
        assert f"## busway {name}" in reference
        for parameter in inspect.signature(command.callback).parameters.values():
            variable = getattr(get_args(parameter.annotation)[1], "envvar", None)
            assert variable is None or f"`{variable}`" in reference, variable


def test_readme_begins_with_run_and_test():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert "make run" in head
    assert "make test" in head


def test_readme_shows_one_run():
    """The figures of its table are those of the run that the picture shows."""
    readme, run = (ROOT / "README.md").read_text(), (ROOT / "benchmarks/results/latest.md").read_text()
    assert "older run" not in readme
    found = {
        text: f"{int(rate.replace(',', '')) / 1e6:.3g}"
        for text, rate in re.findall(r"^\| ((?:busway-tcp batch)|zeromq|nats) \| ([\d,]+) \|", run, re.MULTILINE)[:3]
    }
    (row,) = re.findall(r"^\| one publisher to one subscriber, batches \| (.*) \|$", readme, re.MULTILINE)
    assert [cell.removesuffix(" M/s") for cell in row.split(" | ")] == [
        f"{float(found[name]):.{digits}f}" for name, digits in (("busway-tcp batch", 1), ("zeromq", 2), ("nats", 2))
    ]
