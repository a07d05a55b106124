"""Names that a shell completes, asked of the broker by a real bash."""

import asyncio
import sys

import pytest

from tests.cli.conftest import PATIENCE

SCRIPT = """
source <(_BUSWAY_COMPLETE=source_bash busway)
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_busway_completion busway
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def complete(shell, tmp_path):
    """What bash suggests for the last word of a command line, and all that was printed besides."""
    command = tmp_path / "busway"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m busway "$@"\n')
    command.chmod(0o755)

    async def ask(words, **environment):
        process = await asyncio.create_subprocess_exec(
            *("bash", "--norc", "-c", SCRIPT.format(words=words)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=shell.environment | {"PATH": f"{tmp_path}:{shell.environment['PATH']}"} | environment,
        )
        async with asyncio.timeout(PATIENCE):
            out, notes = await process.communicate()
        assert notes == b""
        return out.decode().split()

    return ask


async def test_streams_channels_and_topics_are_completed(complete, bus):
    await bus.create_stream("orders", ["orders/**"])
    await bus.create_channel("orders", "billing")
    await bus.create_channel("orders", "bookkeeping")
    await bus.publish("orders/eu", b"1", durable=True)
    await bus.pin("orders/config", b"{}")
    assert await complete("busway stream info or") == ["orders"]
    assert await complete("busway take orders b") == ["billing", "bookkeeping"]
    assert await complete("busway pub orders/") == ["orders/config", "orders/eu"]
    assert await complete("busway replay orders") == ["orders", "orders/config", "orders/eu"]


async def test_flags_of_the_connection_count(complete, server, bus):
    await bus.create_stream("orders", ["orders/**"])
    nowhere = {"BUSWAY_URL": "tcp://127.0.0.1:1"}
    assert await complete(f"busway stream info --url {server.addresses[0]} or", **nowhere) == ["orders"]


async def test_nothing_is_printed_if_the_broker_cannot_be_asked(complete):
    assert await complete("busway stream info or", BUSWAY_URL="tcp://127.0.0.1:1") == []
    assert await complete("busway take nothing b") == []
