"""Lists and tables print one line for each thing, whatever others have written into it."""

import io

from rich.console import Console

import busway
from busway.cli.common import tables


async def test_nobody_can_forge_a_line(shell, server, bus):
    forged = "\npin  config/root by admin: open\r\x1b[2K\x9b2K\u2028post x by y: z"
    async with server.connect(name=f"eve{forged}") as eve:
        await eve.post("t", f"up{forged}\n", fields={"host": f"a1{forged}"})
        await bus.pin("u", b"first\tsecond\n\n")
        done = await shell.run("kept")
    assert done.code == 0
    one, two = done.out.decode().removesuffix("\n").split("\n")
    assert one.startswith('post t [host="a1\\npin  config/root')
    assert "]" in one
    assert "by eve\\npin  config/root by admin: open\\x0d\\x1b[2K\\x9b2K\\u2028post x by y: z: up\\npin  config" in one
    assert two == "pin  u by test: first\\tsecond\\n"
    assert all(line.isprintable() for line in (one, two))


async def test_sub_prints_lines_as_they_are_and_nothing_that_moves_the_cursor(shell, bus: busway.Bus):
    sub = await shell.start("sub", "t", "--count", 1)
    await sub.ready()
    await bus.publish("t", "one\n\ttwo\x1b[2K\n", fields={"host": "\x9b2K\n"})
    done = await sub.end()
    assert done.out.decode() == 't [host="\\u009b2K\\n"] one\n\ttwo\\x1b[2K\n'


async def test_tables_show_names_as_they_are_and_on_their_line(shell, server):
    async with server.connect(name="[/]eve\n[red]root\x1b[2J"):
        done = await shell.run("info")
    assert done.code == 0
    (line,) = (line for line in done.lines if "eve" in line)
    assert "[/]eve\\n[red]root\\x1b[2J" in line


def printed(table: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_on_a_narrow_screen_spare_columns_are_left_out_and_no_number_is_cut() -> None:
    records = [{"stream": "orders", "messages": 123_456, "first": 0, "next": 123_456, "topics": "orders/** " * 5}]
    wide = printed(tables.rows("", records, spare=("first", "next")), 100)
    assert wide[0].split() == ["stream", "messages", "first", "next", "topics"]
    narrow = printed(tables.rows("", records, spare=("first", "next")), 40)
    assert narrow[0].split() == ["stream", "messages", "next", "topics"]
    assert narrow[1].split()[1:3] == ["123,456", "123,456"]
    narrower = printed(tables.rows("", records, spare=("first", "next")), 30)
    assert narrower[0].split() == ["stream", "messages", "topics"]
    assert "…" not in "".join(wide + narrow + narrower)
