"""`busway bench` when messages or processes are lost: it ends and reports the cause."""

import asyncio
import json
import sys

import pytest

import busway
from busway.settings import Settings


@pytest.mark.parametrize("each", [True, False])
async def test_a_subscriber_does_not_wait_for_what_was_dropped(server, bus, each):
    job = {"url": server.addresses[0], "topic": "t", "count": 5, "each": each, "size": 1, "silence": 0.5}
    result = await _work("subscribe", job, lambda: bus.publish_many("t", [b"x"] * 3))
    assert result["received"] == 3


async def test_a_member_does_not_wait_for_an_end_that_was_dropped(server, bus):
    job = {"url": server.addresses[0], "topic": "t", "count": 5, "group": "g", "size": 1, "silence": 0.5}
    result = await _work("subscribe", job, lambda: bus.publish_many("t", [b"x"] * 3))
    assert result["received"] == 3


async def _work(role, job, before):
    """The result of a workload process that is let go after this was done."""
    pipe = asyncio.subprocess.PIPE
    arguments = ("-m", "busway.cli.bench.worker", role, json.dumps(job))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(60):
            assert json.loads(await process.stdout.readline()) == {"ready": True}
            await before()
            process.stdin.write(b"go\n")
            async for line in process.stdout:
                if "result" in (said := json.loads(line)):
                    return said["result"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    raise AssertionError("no result")


async def test_messages_that_went_elsewhere_are_told(shell, server, bus):
    bench = await shell.start(
        *("bench", "group", "--url", server.addresses[0], "--count", "100k", "--subscribers", 1, "--repeat", 1)
    )
    topic = f"bench/group/{bench.process.pid}/0"
    async with bus.subscribe(topic, group="bench", policy="drop_oldest"):
        done = await bench.end()
    assert (done.code, done.out) == (1, b"")
    assert done.notes.startswith("busway: group: only ")
    assert "of 100000 messages arrived" in done.notes
    assert len(done.notes.splitlines()) == 1


@pytest.mark.parametrize("what", ["throughput", "stream", "request", "requests"])
async def test_a_process_that_fails_says_why_in_one_line(shell, what):
    async with busway.serve("tcp://127.0.0.1:0", settings=Settings(frame=1024)) as small:
        done = await shell.run("bench", what, "--url", small.addresses[0], "--size", "4k", "--repeat", 1)
    assert (done.code, done.out) == (1, b"")
    assert done.notes.startswith("busway: a process of the benchmark failed: ")
    assert len(done.notes.splitlines()) == 1
