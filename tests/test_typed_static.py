"""What a type checker makes of typed protocols: mypy in strict mode over a small program."""

import subprocess
import sys

PROGRAM = """
import busway
import busway.sync

class Answer(busway.Protocol):
    text: str

class Ask(busway.Protocol[Answer], prefix="ask"):
    name: str
    tries: int = 1

async def main(bus: busway.Bus, blocking: busway.sync.Bus) -> None:
    reveal_type(await bus.request("", Ask(name="x")))
    reveal_type(await bus.request("sum", [1, 2]))
    reveal_type(await bus.publish("x", b"", confirm=True))
    async with bus.subscribe(Ask, "**") as typed, bus.subscribe("**") as plain:
        topic, value = await typed.recv()
        reveal_type(topic)
        reveal_type(value)
        async for received in typed:
            reveal_type(received.value)
        reveal_type(await plain.recv())
    async with bus.serve(Ask, "") as service:
        reveal_type((await service.recv()).value)
    reveal_type(blocking.request("", Ask(name="x")))
    with blocking.subscribe(Ask, "**") as both:
        reveal_type(both.recv().value)
    bus.serve(Ask, "", lambda ask: Answer(text=ask.name))
    Ask(nme="x")
    bus.serve(Ask, "", lambda ask: Answer(text=ask.nme))
    Ask(name="x").name = "y"
"""

EXPECTED = [
    'note: Revealed type is "program.Answer"',
    'note: Revealed type is "busway._core.Message"',
    'note: Revealed type is "int"',
    'note: Revealed type is "str"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "busway._core.Message"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "program.Answer"',
    'note: Revealed type is "program.Ask"',
    'error: Unexpected keyword argument "nme" for "Ask"',
    'error: "Ask" has no attribute "nme"',
    'error: Property "name" defined in "Ask" is read-only',
]


def test_types_are_known(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", tmp_path / "cache"]
    result = subprocess.run(
        [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=55, check=False
    )
    lines = [line.split(": ", 1)[1] for line in result.stdout.splitlines() if line.startswith("program.py")]
    assert len(lines) == len(EXPECTED), result.stdout + result.stderr
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert line.replace("builtins.", "").startswith(expected), result.stdout
