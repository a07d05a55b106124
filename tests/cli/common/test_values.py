"""How people write durations, sizes, addresses and formats."""

import pytest

import busway
from busway.cli.common import values
from busway.gateway.message_json import as_object


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5", 1.5),
        (" 3s ", 3),
        ("1h30m", 5400),
        ("2w", 1209600),
    ],
)
def test_durations(text, seconds):
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("128", 128), ("64k", 65536), ("1m", 1 << 20), ("2G", 2 << 30), ("1.5k", 1536), ("4KiB", 4096)]
)
def test_sizes(text, size):
    assert values.size(text) == size


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("50k", 50_000), ("1m", 1_000_000), ("2.5k", 2500)])
def test_counts(text, count):
    assert values.count(text) == count


@pytest.mark.parametrize("text", ["0", "0k", "0.5", "1.5", "1.0001k"])
def test_counts_are_whole_and_above_zero(text):
    with pytest.raises(ValueError, match="whole number of 1 or more"):
        values.count(text)


@pytest.mark.parametrize("parse", [values.duration, values.size, values.count])
@pytest.mark.parametrize("text", ["", "x", "-1", "1x", "1 2", "s"])
def test_what_is_none(parse, text):
    with pytest.raises(ValueError, match="is not a"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://h:1", "tcp://h:1"),
        ("localhost:8000", "tcp://localhost:8000"),
        ("127.0.0.1:7420", "tcp://127.0.0.1:7420"),
        ("unix:my_bus", "unix:my_bus"),
        ("my_bus", "unix:my_bus"),
        ("/run/bus:1", "unix:/run/bus:1"),
        ("tls://h:1", "tls://h:1"),
    ],
)
def test_addresses(text, address):
    assert values.connect_address(text) == address


def test_listen_addresses():
    assert values.listen_address("unix", "my_bus") == "unix:my_bus"
    assert values.listen_address("tcp", "127.0.0.1:8000") == "tcp://127.0.0.1:8000"
    assert values.listen_address("tcp", "tcp://127.0.0.1:8000") == "tcp://127.0.0.1:8000"


@pytest.mark.parametrize("text", ["http://x", "ws://h:1/bus", "TCP://h:1"])
def test_unknown_schemes(text):
    for read in (values.connect_address, lambda one: values.listen_address("unix", one)):
        with pytest.raises(ValueError, match="an unknown scheme: write unix:PATH, tcp://HOST:PORT or tls://HOST:PORT"):
            read(text)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"abc\n", "abc"),
        ("ä€".encode(), "ä€"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"a\x1b[31m", "a\\x1b[31m"),
        (b"a\tb", "a\tb"),
    ],
)
def test_payloads_on_the_screen(payload, text):
    assert values.readable(payload) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [("ä b", "ä b"), ("a\nb\tc", "a\\nb\\tc"), ("a\r\x1b[2K\x85\u2028", "a\\x0d\\x1b[2K\\x85\\u2028")],
)
def test_one_line(given, text):
    assert values.one_line(given) == text


async def test_format(bus):
    async with bus.subscribe("a/b") as subscription:
        await bus.publish("a/b", "hello")
        message = await subscription.recv(timeout=60)
    layout = values.Format(r'{number}\t{topic} {payload} {size} {sender} {kind} {missed} {"x"} {}')
    assert layout.line(message, 7) == '7\ta/b hello 5 test publish 0 {"x"} {}'
    assert message.id in values.Format("{id}").line(message, 1)
    assert values.Format("{time}").line(message, 1) == message.time.isoformat()
    with pytest.raises(ValueError, match="is not a field of --format"):
        values.Format("{nope}")


async def test_objects(bus: busway.Bus):
    async with bus.subscribe("a/b") as subscription:
        await bus.publish("a/b", b"\xff")
        message = await subscription.recv(timeout=60)
    made = as_object(message)
    assert made["payload_base64"] == "/w=="
    assert made["topic"] == "a/b"
