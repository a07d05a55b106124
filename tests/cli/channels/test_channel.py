"""`busway channel`, `busway take`, and the figures of channels in `info`."""

import json
import signal

import pytest

import busway
from tests.support.net import eventually


@pytest.fixture
async def orders(bus):
    """A stream with five messages."""
    stream = await bus.create_stream("orders", ["orders/**"])
    for number in range(5):
        topic = "orders/eu" if number % 2 == 0 else "orders/us"
        await bus.publish(topic, b"%d" % number, durable=True, fields={"n": number})
    return stream


async def figures(bus, name="billing"):
    (found,) = [one for one in await bus.channels("orders") if one.name == name]
    return found


async def test_a_channel_is_made_changed_and_shown(shell, bus, orders):
    made = await shell.run(
        *("channel", "create", "orders", "billing", "--start", "2", "--lease", "5m", "--max-deliveries", "3"),
        *("--dead-letter", "bad/{channel}", "--topic", "orders/eu", "--where", "n=[2, 4]", "--exclusive", "--json"),
        *("--backoff", "1s,250ms", "--order-by", "topic"),
    )
    assert (made.code, made.notes) == (0, "")
    info = json.loads(made.out)
    assert (info["floor"], info["lease"], info["max_deliveries"]) == (2, 300, 3)
    assert (info["dead_letter"], info["topic"], info["exclusive"]) == ("bad/{channel}", "orders/eu", True)
    assert info["where"]
    assert (info["backoff"], info["order_by"]) == ([1, 0.25], "topic")
    done = await shell.run(
        *("channel", "update", "orders", "billing", "--lease", "none", "--max-deliveries", "none"),
        *("--dead-letter", "none", "--shared", "--backoff", "first=2s,limit=1m", "--order-by", "customer"),
    )
    assert (done.code, done.out, done.notes) == (0, b"", "")
    changed = await figures(bus)
    assert (changed.lease, changed.max_deliveries, changed.dead_letter, changed.exclusive) == (0, 0, "", False)
    assert changed.topic == "orders/eu"
    assert (changed.backoff, changed.order_by) == (busway.Backoff(2, limit=60), "customer")
    assert (await shell.run("channel", "update", "orders", "billing", "--order-by", "none")).code == 0
    assert (await figures(bus)).order_by == ""
    listed = await shell.run("channel", "list", "orders")
    assert [line.split()[:4] for line in listed.lines] == [
        ["channel", "stream", "topic", "lag"],
        ["billing", "orders", "orders/eu", "3"],
    ]
    (one,) = [json.loads(line) for line in (await shell.run("channel", "list", "orders", "--json")).lines]
    assert (await shell.run("channel", "list")).out == listed.out
    shown = json.loads((await shell.run("channel", "info", "orders", "billing", "--json")).out)
    assert one == shown
    table = await shell.run("channel", "info", "orders", "billing")
    assert {"floor 2", "lag 3", "backoff first=2s,factor=2,limit=1m,jitter=0.1"} <= {
        " ".join(line.split()) for line in table.lines
    }


async def test_a_channel_is_moved_paused_and_removed(shell, bus, orders):
    await bus.create_channel("orders", "billing")
    for place, offset in (("new", 5), ("3", 3), ("1h", 0)):
        moved = await shell.run("channel", "seek", "orders", "billing", place, "--json")
        assert json.loads(moved.out) == {"stream": "orders", "channel": "billing", "offset": offset}
    paused = await shell.run("channel", "pause", "orders", "billing")
    assert (paused.code, paused.out, (await figures(bus)).paused) == (0, b"", True)
    assert json.loads((await shell.run("channel", "resume", "orders", "billing", "--json")).out)["paused"] is False
    gone = await shell.run("channel", "remove", "orders", "billing", "--json")
    assert (gone.code, json.loads(gone.out)["name"]) == (0, "billing")
    none = await shell.run("channel", "list", "orders")
    assert (none.code, none.out) == (0, b"")
    assert "no channel" in none.notes


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("channel", "list", "nobody"), 5, "no stream 'nobody'"),
        (("channel", "info", "orders", "nobody"), 5, "no channel 'nobody'"),
        (("channel", "update", "orders", "nobody", "--lease", "5s"), 5, "no channel 'nobody'"),
        (("channel", "update", "orders", "billing"), 2, "nothing to change"),
        (("channel", "create", "orders", "billing", "--lease", "soon"), 2, "not a length of time"),
        (("channel", "create", "orders", "billing", "--backoff", "1s,,2s"), 2, "a delay is empty"),
        (("channel", "update", "orders", "billing", "--backoff", "first=1s,x=2"), 2, "is not valid"),
        (("channel", "create", "orders", "billing", "--start", "soon"), 2, "'soon' is not a position"),
        (("channel", "create", "orders", "billing", "--start", "99"), 5, "offset 99"),
        (("channel", "create", "orders", "a/b"), 2, "not a valid name of a channel"),
        (("channel", "seek", "orders", "nobody", "0"), 5, "no channel"),
        (("channel", "remove", "orders", "nobody"), 5, "no channel"),
        (("take", "orders", "nobody"), 5, "no channel 'nobody'"),
        (("take", "orders", "nobody"), 5, "'busway take --create'"),
        (("take", "orders", "billing", "--raw", "--json"), 2, "exclude each other"),
        (("take", "orders", "billing", "--exec", "true", "--no-ack"), 2, "--no-ack"),
        (("take", "orders", "billing", "--exec", "true", "--peek"), 2, "--peek"),
    ],
)
async def test_what_can_not_be_done_is_told(shell, orders, arguments, code, words):
    done = await shell.run(*arguments)
    assert (done.code, done.out) == (code, b"")
    assert words in " ".join(done.notes.replace("│", " ").split())


async def test_take_prints_and_acknowledges(shell, bus, orders):
    one = await shell.run("take", "orders", "billing", "--create")
    assert (one.code, one.out, one.notes) == (0, b"orders/eu [n=0] 0\n", "")
    more = await shell.run("take", "orders", "billing", "-n", "2", "--json")
    taken = [json.loads(line) for line in more.lines]
    assert [(message["payload"], message["offset"], message["deliveries"]) for message in taken] == [
        ("1", 1, 1),
        ("2", 2, 1),
    ]
    assert (await figures(bus)).floor == 3
    for flags in ((), ("--follow",)):  # a message that was only looked at has used up no delivery
        looked = await shell.run(
            *("take", "orders", "billing", "-n", "2", "--peek", "--format", "{payload} {deliveries}", *flags)
        )
        assert (looked.code, looked.out) == (0, b"3 1\n4 1\n")
    again = await shell.run("take", "orders", "billing", "-n", "100", "--format", "{payload} {deliveries}")
    assert again.out == b"3 1\n4 1\n"
    empty = await shell.run("take", "orders", "billing", "--timeout", "50ms")
    assert (empty.code, empty.out) == (3, b"")
    assert "nothing to take" in empty.notes
    short = await shell.run("channel", "seek", "orders", "billing", "4")
    assert short.code == 0
    part = await shell.run("take", "orders", "billing", "-n", "3", "--whole", "-t", "50ms", "--raw")
    assert (part.code, part.out) == (3, b"4")
    assert "only 1 of 3" in part.notes


async def test_take_follows(shell, bus, orders):
    following = await shell.start("take", "orders", "billing", "--create", "--follow", "--format", "{payload}")
    assert "orders/billing" in await following.ready()
    assert [await following.line() for _ in range(5)] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]
    await bus.publish("orders/eu", b"5", durable=True)
    assert await following.line() == b"5\n"

    async def done():
        return (await figures(bus)).floor == 6

    await eventually(done)
    ended = await following.end(signal.SIGINT)
    assert ended.code == 130
    assert (await figures(bus)).consumers == 0
    await bus.seek_channel("orders", "billing", 0)
    counted = await shell.run("take", "orders", "billing", "--follow", "-n", "4", "--raw", "-q")
    assert (counted.code, counted.out, counted.notes) == (0, b"0123", "")


async def test_take_runs_a_command_for_each(shell, bus, orders):
    await bus.create_channel("orders", "billing", max_deliveries=2)
    done = await shell.run(
        *("take", "orders", "billing", "--follow", "-t", "2s"),
        *("--exec", 'read n; test "$n" = 3 && exit 7; echo "$BUSWAY_TOPIC $n"'),
    )
    assert done.code == 3  # nothing more came
    assert done.lines == ["orders/eu 0", "orders/us 1", "orders/eu 2", "orders/eu 4"]
    assert "offset 3: the command failed (exit status 7)" in done.notes
    after = await figures(bus)
    assert (after.floor, after.dead) == (5, 1)
    (letter,) = await bus.dead_letters("orders", "billing")
    assert (letter.offset, letter.reason) == (3, "the command failed: exit status 7")


async def test_a_command_that_fails_is_seen_by_the_exit_code(shell, bus, orders):
    await bus.create_channel("orders", "billing", max_deliveries=0)
    failed = await shell.run("take", "orders", "billing", "--exec", "false")
    assert failed.code == 1
    assert "failed for 1 of 1 messages" in failed.notes
    some = await shell.run("take", "orders", "billing", "-n", "3", "--exec", 'read n; test "$n" != 1')
    assert some.code == 1
    assert "failed for 1 of 3 messages" in some.notes
    good = await shell.run("take", "orders", "billing", "--exec", "true")
    assert (good.code, good.notes) == (0, "")


async def test_a_command_longer_than_the_lease_keeps_its_message(shell, bus, orders):
    # A lease long enough that a busy machine does not miss the renewal.
    await bus.create_channel("orders", "billing", lease=4)
    done = await shell.run("take", "orders", "billing", "--exec", "sleep 7; cat")
    assert (done.code, done.out, done.notes) == (0, b"0", "")
    after = await figures(bus)
    assert (after.floor, after.late, after.redelivered) == (1, 0, 0)


async def test_an_interrupted_command_gives_its_message_back(shell, bus, orders):
    await bus.create_channel("orders", "billing", lease=0)
    running = await shell.start("take", "orders", "billing", "--follow", "--exec", "echo begun; sleep 100")
    await running.ready()

    async def begun():
        return (await figures(bus)).in_flight == 1

    await eventually(begun)
    ended = await running.end(signal.SIGINT)
    assert ended.code == 130
    after = await figures(bus)
    assert (after.floor, after.in_flight, after.consumers) == (0, 0, 0)


async def test_info_shows_channels_with_their_lag(shell, bus, orders):
    await bus.create_channel("orders", "billing", start=3)
    shown = await shell.run("info", "--no-connections")
    lines = [" ".join(line.split()) for line in shown.lines]
    assert "channels" in lines
    assert any(line.startswith("billing orders ** 2") for line in lines)
    found = json.loads((await shell.run("info", "--json")).out)
    (stream,) = [one for one in found["streams"] if one["name"] == "orders"]
    assert [(one["name"], one["lag"]) for one in stream["channels"]] == [("billing", 2)]
