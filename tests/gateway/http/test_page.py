"""The `curl` commands of the page on the JSON door print the output that the page shows."""

import asyncio
import re
import shlex
import shutil
from pathlib import Path

import busway

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "json.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_curl():
    assert shutil.which("curl"), "these need curl"
    async with busway.serve(http="127.0.0.1:0") as server:
        steps = 0
        for block in BLOCK.finditer(PAGE.read_text("utf-8")):
            lines = block[1].splitlines()
            for command, wanted in zip(lines[::2], lines[1::2], strict=True):
                steps += 1
                text, _, behind = (
                    command.removeprefix("$ ").replace("http://127.0.0.1:15555", server.http).partition(" | ")
                )
                words = shlex.split(text)
                assert words[0] == "curl"
                process = await asyncio.create_subprocess_exec(*words, "-s", stdout=asyncio.subprocess.PIPE)
                output, _ = await process.communicate()
                if behind:
                    assert wanted in output.decode(), command
                else:
                    assert output.decode() == wanted, command
        assert steps == 8
