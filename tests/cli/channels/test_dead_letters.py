"""`busway channel dead` and `busway channel redrive`."""

import json

import pytest

from tests.support.channels import shown, store


@pytest.fixture
async def letters(bus):
    """A channel with four dead letters, by their offsets."""
    await bus.create_stream("s", ["t/**"])
    await store(bus, 0, 4)
    async with bus.channel("s", "c", window=10) as channel:
        for message in await channel.take(4, timeout=60, whole=True):
            await message.reject("timeout of the bank" if message.offset % 2 else "unknown customer")
        await shown(bus, dead=4)
    return {one.offset: one for one in await bus.dead_letters("s", "c")}


async def test_they_are_listed_and_shown_in_full(shell, bus, letters):
    listed = await shell.run("channel", "dead", "s", "c")
    assert listed.lines[0].split() == ["id", "died", "topic", "deliveries", "reason"]
    assert sum("timeout of the bank" in line for line in listed.lines) == 2
    few = await shell.run("channel", "dead", "s", "c", "--last", "1", "--reason", "BANK", "--since", "1h", "--json")
    (one,) = [json.loads(line) for line in few.lines]
    assert (one["reason"], one["topic"], one["deliveries"]) == ("timeout of the bank", "t/a", 1)
    assert one["payload"] == str(one["offset"])
    assert "--last" in (await shell.run("channel", "dead", "s", "c", "--last", "2")).notes
    whole = await shell.run("channel", "dead", "s", "c", letters[0].id[:20])
    found = {" ".join(line.split()) for line in whole.lines}
    assert {"reason unknown customer", "payload 0", "offset 0", "state dead", f"id {letters[0].id}"} <= found
    none = await shell.run("channel", "dead", "s", "c", "--topic", "x/**")
    assert (none.code, none.out) == (0, b"")
    assert "no such dead letter" in none.notes
    unknown = await shell.run("channel", "dead", "s", "c", "ffff" * 8)
    assert (unknown.code, unknown.out) == (1, b"")
    assert "no dead letter has the id ffff" in unknown.notes
    for verb in ("dead", "redrive"):
        empty = await shell.run("channel", verb, "s", "c", "")
        assert (empty.code, empty.out) == (2, b"")
        assert "an id is empty" in " ".join(empty.notes.replace("│", " ").split())


async def test_they_are_sent_back(shell, bus, letters):
    for wrong in ((), ("--all", "--reason", "x"), (letters[0].id, "--all")):
        assert (await shell.run("channel", "redrive", "s", "c", *wrong)).code == 2
    one = await shell.run("channel", "redrive", "s", "c", letters[0].id, "--json")
    assert json.loads(one.out) == {"redriven": 1, "before": 0, "gone": 0, "left": 0, "unreached": []}
    some = await shell.run("channel", "redrive", "s", "c", "--reason", "bank")
    assert (some.code, some.out) == (0, b"")
    assert "2 dead letters were sent back to s/c" in some.notes
    assert json.loads((await shell.run("channel", "redrive", "s", "c", "--all", "--json")).out)["redriven"] == 1
    none = await shell.run("channel", "dead", "s", "c")
    assert (none.out, none.notes) == (b"", "the channel s/c has no dead letters\n")
    before = await shell.run("channel", "redrive", "s", "c", "--all")
    assert "0 dead letters were sent back to s/c; 4 had been sent back before" in before.notes
    again = await shell.run("channel", "dead", "s", "c", "--redriven", "--json")
    assert [json.loads(line)["redriven"] for line in again.lines] == [True] * 4
    await shown(bus, lag=4)


async def test_to_what_is_not_there(shell, bus, letters):
    await bus.remove_stream("s")
    gone = await shell.run("channel", "redrive", "s", "c", "--all")
    assert (gone.code, gone.out) == (5, b"")
    assert "there is no stream 's'" in gone.notes
