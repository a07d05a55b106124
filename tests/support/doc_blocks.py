"""Code blocks of a page: found, and run one after the other."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import busway

FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


DEFAULT = "tcp://127.0.0.1:7420"


class Block(NamedTuple):
    language: str
    text: str
    line: int
    follows: bool  # nothing but white space stands between this block and the one before


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(fence[1], fence[2], line, bool(found) and not text[end : fence.start()].strip()))
        end = fence.end()
    return found


@pytest.fixture
async def address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with busway.serve("tcp://127.0.0.1:0", name="docs") as server:
        monkeypatch.setenv("BUSWAY_URL", server.addresses[0])
        for name, value in (("COUNT", "2k"), ("REQUESTS", "200"), ("REPEAT", "1")):  # a look, not a measurement
            monkeypatch.setenv(f"BUSWAY_BENCH_{name}", value)
        yield server.addresses[0]


async def run_block(block: Block, page: Path, namespace: dict[str, Any], address: str) -> str:
    source = "\n" * (block.line - 1) + block.text.replace(DEFAULT, address)
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        if code.co_flags & inspect.CO_COROUTINE:
            async with asyncio.timeout(60):
                await eval(code, namespace)
        elif "busway.run(" in block.text or "sync" in block.text:  # makes its own loop, or blocks: not on ours
            await asyncio.to_thread(eval, code, namespace)
        else:
            eval(code, namespace)
    return output.getvalue()
