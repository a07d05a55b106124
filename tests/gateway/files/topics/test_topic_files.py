"""Files of topics, services and stored messages, beside native clients of the same bus."""

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import busway
from tests.support.commands import plain
from tests.support.fusebus_client import Raw, listed, refused, register
from tests.support.mounts import PATIENCE, until


@pytest.fixture
async def both(mount, tmp_path):
    """A mount with a bus of its own, and a native client of that bus."""
    url = f"unix:{tmp_path}/bus"
    made = mount("--unix", tmp_path / "bus")
    async with busway.connect(url, name="native") as bus:
        yield made.folder, bus


def read(path):
    with path.open("rb") as file:
        return file.read()


def names_in(folder):
    return [one.name for one in folder.iterdir()]


async def readable(file):
    """In a thread, so that what was published gets out."""
    return (await asyncio.to_thread(select.select, [file], [], [], PATIENCE))[0]


async def until_read(path, wanted):
    async with asyncio.timeout(PATIENCE):
        while (found := read(path)) != wanted:
            assert wanted.startswith(found), found
            await asyncio.sleep(0.01)


# Channels are topics.


async def test_what_is_written_to_a_channel_reaches_native_subscribers(both):
    folder, bus = both
    register(folder, "price/eth", "other")
    async with bus.subscribe("price/*") as prices:
        with Raw(folder), Raw(folder) as second:
            second.publish(1, b"not this")
            second.publish(0, b"3012.5")
            message = await prices.recv(timeout=PATIENCE)
    assert (message.topic, message.payload, message.fields) == ("price/eth", b"3012.5", {"serno": 1, "client": 1})


async def test_what_is_published_natively_reaches_the_file_with_serial_and_client_numbers(both):
    folder, bus = both
    register(folder, "price/eth")
    with Raw(folder) as client:
        client.subscribe("price/.*")
        client.publish(0, b"mine")
        for number in range(3):
            await bus.publish("price/eth", str(number).encode())
        await bus.publish("price/btc", b"no channel")
        got = await asyncio.to_thread(client.wait, 4)
    assert [(one.channel, one.serno, one.data) for one in got] == [
        (0, 0, b"mine"),
        (0, 1, b"0"),
        (0, 2, b"1"),
        (0, 3, b"2"),
    ]
    assert {one.client for one in got[:1]} == {0}
    (native,) = {one.client for one in got[1:]}
    assert native >= 1 << 63


async def test_two_native_publishers_have_two_numbers(both):
    folder, bus = both
    register(folder, "A")
    with Raw(folder) as client:
        client.subscribe("A")
        async with busway.connect(bus.url) as other:
            await bus.publish("A", b"1")
            await other.publish("A", b"2")
            got = await asyncio.to_thread(client.wait, 2)
    assert len({one.client for one in got}) == 2


async def test_what_is_kept_on_the_bus_is_there_when_its_channel_is_registered(both):
    folder, bus = both
    await bus.pin("config", b"{}")
    register(folder, "config")
    with Raw(folder) as client:
        client.subscribe("config")
        assert [one.data for one in await asyncio.to_thread(client.wait, 1)] == [b"{}"]


async def test_pushes_and_requests_are_not_for_the_mount(both):
    folder, bus = both
    register(folder, "jobs")
    (folder / "topics" / "jobs").touch()
    with pytest.raises(busway.NoConsumers):
        await bus.push("jobs", b"x")
    with pytest.raises(busway.NoResponders):
        await bus.request("jobs", b"x")
    with Raw(folder) as client:
        client.subscribe("jobs")
        await bus.publish("jobs", b"for all")
        assert [one.data for one in await asyncio.to_thread(client.wait, 1)] == [b"for all"]
    await until_read(folder / "topics" / "jobs", b"for all\n")


async def test_a_native_message_that_is_too_long_is_left_out_and_counted(both):
    folder, bus = both
    register(folder, "A")
    with Raw(folder) as client:
        client.subscribe("A")
        await bus.publish("A", b"x" * 1017)
        await bus.publish("A", b"y")
        assert [(one.serno, one.data) for one in await asyncio.to_thread(client.wait, 1)] == [(0, b"y")]
    assert os.getxattr(folder / "fusebus", "user.busway.too_long") == b"1"


async def test_a_topics_file_and_a_channel_of_the_same_name_are_one_topic(both):
    folder, _ = both
    register(folder, "A")
    topic = folder / "topics" / "A"
    with Raw(folder) as client, topic.open("rb", buffering=0):
        client.subscribe("A")
        topic.write_text("line\n")
        assert [one.data for one in await asyncio.to_thread(client.wait, 1)] == [b"line"]
        client.publish(0, b"message")
        await until_read(topic, b"line\nmessage\n")


# Topics.


async def test_a_line_is_a_message(both):
    folder, bus = both
    async with bus.subscribe("price") as prices:
        (folder / "topics" / "price").write_bytes(b"1\n2\n\n3")
        got = [await prices.recv(timeout=PATIENCE) for _ in range(4)]
        assert [one.payload for one in got] == [b"1", b"2", b"", b"3"]
        assert got[0].fields == {}
    assert read(folder / "topics" / "price") == b"1\n2\n\n3\n"


async def test_a_file_grows_by_what_others_publish(both):
    folder, bus = both
    path = folder / "topics" / "price"
    path.touch()
    assert path.stat().st_size == 0
    with path.open("rb", buffering=0) as file:
        assert file.read() == b""
        assert not select.select([file], [], [], 0)[0]
        await bus.publish("price", b"1")
        assert await readable(file)
        assert file.read() == b"1\n"
        assert not select.select([file], [], [], 0)[0]
    assert path.stat().st_size == 2
    assert read(path) == b"1\n"


async def test_a_file_that_is_cut_at_its_beginning_goes_on_where_a_reader_is(mount, tmp_path):
    folder = mount("--kept", 100).folder
    path = folder / "topics" / "x"
    path.touch()
    with path.open("rb", buffering=0) as file:
        path.write_bytes(b"first line\n")
        assert file.read() == b"first line\n"
        for number in range(30):
            path.write_bytes(b"line %07d\n" % number)  # 13 bytes, 7 lines of which are kept
        assert file.read() == b"".join(b"line %07d\n" % number for number in range(23, 30))
        size = path.stat().st_size
        path.write_bytes(b"last\n")
        assert path.stat().st_size > size
        assert file.read() == b"last\n"
    assert read(path).endswith(b"last\n")
    assert path.stat().st_size == len(read(path)) <= 100


async def test_a_conversation_waits_for_what_comes_next(both):
    folder, bus = both
    path = folder / "topics" / "talk"
    path.write_bytes(b"before\n")
    with contextlib.closing(open_rw(path)) as file:
        os.set_blocking(file.fd, False)
        with refused(errno.EAGAIN):
            os.read(file.fd, 100)
        os.set_blocking(file.fd, True)
        waiting = asyncio.create_task(asyncio.to_thread(os.read, file.fd, 100))
        await bus.publish("talk", b"hello")
        assert await asyncio.wait_for(waiting, PATIENCE) == b"hello\n"
        async with bus.subscribe("talk", echo=False) as talk:
            os.write(file.fd, b"hi\n")
            assert (await talk.recv(timeout=PATIENCE)).payload == b"hi"
        assert os.read(file.fd, 100) == b"hi\n"


class open_rw:  # noqa: N801
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def close(self):
        os.close(self.fd)


async def test_folders_are_made_and_come_with_topics(both):
    folder, bus = both
    topics = folder / "topics"
    with pytest.raises(FileNotFoundError):
        (topics / "a").read_bytes()
    (topics / "a" / "b").mkdir(parents=True)
    async with bus.subscribe("**") as all_of_it:
        (topics / "a" / "b" / "c").write_text("1\n")
        (topics / "x%2Fy").write_text("2\n")
        assert [(await all_of_it.recv(timeout=PATIENCE)).topic for _ in range(2)] == ["a/b/c", "x/y"]
    register(folder, "k/l")
    assert sorted(names_in(topics)) == ["a", "k", "x"]
    assert (names_in(topics / "x"), names_in(topics / "k")) == (["y"], ["l"])
    assert read(topics / "x" / "y") == b"2\n"
    assert sorted(names_in(folder / "json")) == ["a", "k", "x"]
    with refused(errno.ENOTEMPTY):
        (topics / "x").rmdir()
    (topics / "x" / "y").unlink()
    (topics / "x").rmdir()
    assert sorted(names_in(topics)) == ["a", "k"]
    with refused(errno.EEXIST):  # as the file of a topic
        (topics / "a%2Fb").mkdir()


async def test_a_name_with_an_escape_needs_neither_folder_nor_touch(both):
    folder, bus = both
    with (folder / "topics" / "price%2Feth").open("rb", buffering=0) as file:
        await bus.publish("price/eth", b"1")
        assert await readable(file)
        assert file.read() == b"1\n"
    (folder / "topics" / "%70rice").write_text("both\n")
    assert read(folder / "topics" / "%70rice") == b"both\n"
    assert (folder / "topics" / "price").is_dir()


async def test_a_pattern_is_followed_too(both):
    folder, bus = both
    path = folder / "topics" / "price%2F*"
    path.touch()
    await bus.publish("price/eth", b"1")
    await bus.publish("price/btc", b"2")
    await bus.publish("size/btc", b"3")
    await until_read(path, b"1\n2\n")


async def test_json_lines(both):
    folder, bus = both
    path = folder / "json" / "price"
    path.touch()
    await bus.publish("price", b"1", fields={"venue": "krk"})
    await bus.publish("price", b"\xff")
    with path.open("rb", buffering=0) as file:
        lines = b""
        while lines.count(b"\n") < 2:
            assert await readable(file)
            lines += file.read()
    first, second = map(json.loads, lines.splitlines())
    assert (first["topic"], first["payload"], first["sender"], first["fields"]) == (
        "price",
        "1",
        "native",
        {"venue": "krk"},
    )
    assert second["payload_base64"] == "/w=="
    async with bus.subscribe("price") as prices:
        path.write_text('{"payload": {"a": 1}, "fields": {"n": 2}}\n{"payload": "text"}\n')
        got = [await prices.recv(timeout=PATIENCE) for _ in range(2)]
    assert [(one.payload, one.fields) for one in got] == [(b'{"a":1}', {"n": 2}), (b"text", {})]
    with refused(errno.EINVAL):
        path.write_text("no object\n")


async def test_fields_as_attributes(both):
    folder, bus = both
    path = folder / "topics" / "price"
    path.touch()
    os.setxattr(path, "user.busway.field.venue", b"krk")
    os.setxattr(path, "user.busway.field.size", b"5")
    assert os.getxattr(path, "user.busway.field.size") == b"5"
    async with bus.subscribe("price") as prices:
        path.write_text("1\n")
        assert (await prices.recv(timeout=PATIENCE)).fields == {"venue": "krk", "size": 5}
        os.removexattr(path, "user.busway.field.size")
        path.write_text("2\n")
        assert (await prices.recv(timeout=PATIENCE)).fields == {"venue": "krk"}
    assert os.getxattr(path, "user.busway.last.field.venue") == b"krk"
    assert {"user.busway.topic", "user.busway.field.venue", "user.busway.lines"} <= set(os.listxattr(path))
    for name, value, code in [
        ("user.busway.field.size", None, errno.ENODATA),
        ("user.busway.topic", b"x", errno.EPERM),
        ("user.busway.field..id", b"x", errno.EINVAL),
        ("user.other", b"x", errno.EPERM),
    ]:
        with refused(code):
            os.removexattr(path, name) if value is None else os.setxattr(path, name, value)
    with refused(errno.ENODATA):
        os.getxattr(path, "user.busway.nothing")


async def test_a_line_that_is_too_long_and_too_many_topics(mount):
    folder = mount("--line", 10, "--followed", 2).folder
    with refused(errno.EMSGSIZE):
        (folder / "topics" / "x").write_bytes(b"01234567890\n")
    with (folder / "topics" / "a").open("wb"), (folder / "topics" / "b").open("wb"):
        with refused(errno.ENFILE):
            (folder / "topics" / "c").write_bytes(b"1\n")
    (folder / "topics" / "c").write_bytes(b"1\n")
    assert read(folder / "topics" / "c") == b"1\n"


# Services.


async def test_a_request_and_its_reply(both):
    folder, bus = both
    async with bus.serve("math/sum", lambda message: sum(message.json())):
        (folder / "services" / "math").mkdir()
        with contextlib.closing(open_rw(folder / "services" / "math" / "sum")) as file:
            with refused(errno.ENODATA):
                os.read(file.fd, 100)
            os.write(file.fd, b"[1,2]\n")
            os.write(file.fd, b"[3,4]")
            assert await asyncio.to_thread(os.read, file.fd, 100) == b"3"
            assert os.read(file.fd, 100) == b""
            assert await asyncio.to_thread(os.read, file.fd, 100) == b"7"
            assert os.read(file.fd, 100) == b""


async def test_a_reply_is_polled_and_read_in_parts(both):
    folder, bus = both
    async with bus.serve("echo", lambda message: message.payload):
        with contextlib.closing(open_rw(folder / "services" / "echo")) as file:
            os.set_blocking(file.fd, False)
            os.write(file.fd, b"0123456789")
            assert await asyncio.to_thread(select.select, [file.fd], [], [], PATIENCE) == ([file.fd], [], [])
            assert [os.read(file.fd, 4) for _ in range(4)] == [b"0123", b"4567", b"89", b""]


async def test_requests_that_fail(mount, tmp_path):
    folder = mount("--unix", tmp_path / "bus", "--request", "200ms").folder

    def ask(name):
        with contextlib.closing(open_rw(folder / "services" / name)) as file:
            os.write(file.fd, b"x")
            return os.read(file.fd, 100)

    async def never(message):
        await asyncio.Event().wait()

    async with busway.connect(f"unix:{tmp_path}/bus") as bus:
        with refused(errno.EHOSTUNREACH):
            await asyncio.to_thread(ask, "nobody")
        async with bus.serve("fails", lambda message: 1 / 0):
            with refused(errno.EIO):
                await asyncio.to_thread(ask, "fails")
        service = bus.serve("slow", never)
        await service.start()
        with refused(errno.ETIMEDOUT):
            await asyncio.to_thread(ask, "slow")
        await bus.drain(0.0)


# Streams.


async def test_stored_messages_are_files(both):
    folder, bus = both
    await bus.create_stream("orders", ["orders/**"])
    for number in range(3):
        await bus.publish(f"orders/{number}", str(number).encode() * 5, durable=True, fields={"n": number})
    streams = folder / "streams"
    assert "orders" in names_in(streams)
    assert sorted(names_in(streams / "orders")) == [f"{number:020}" for number in range(3)]
    path = streams / "orders" / f"{1:020}"
    assert read(path) == b"11111"
    assert path.stat().st_size == 5
    assert read(streams / "orders" / "2") == b"22222"
    assert os.getxattr(path, "user.busway.topic") == b"orders/1"
    assert os.getxattr(path, "user.busway.field.n") == b"1"
    assert os.getxattr(path, "user.busway.offset") == b"1"
    for missing in ("3", "x", "99999999999999999999"):
        with refused(errno.ENOENT):
            read(streams / "orders" / missing)
    for nothing in (b"nothing", b"\xff", b"a\nb"):
        with refused(errno.ENOENT):
            os.stat(os.fsencode(streams) + b"/" + nothing)  # noqa: PTH116
    with refused(errno.EACCES, errno.EPERM):
        path.write_bytes(b"x")
    with refused(errno.EACCES, errno.EPERM):
        (streams / "orders" / "new").write_bytes(b"x")


async def test_only_the_newest_are_listed(mount, tmp_path):
    folder = mount("--unix", tmp_path / "bus", "--listed", 2).folder
    async with busway.connect(f"unix:{tmp_path}/bus") as bus:
        await bus.create_stream("s", ["s"])
        await bus.publish_many("s", [b"0", b"1", b"2"], durable=True)
    assert sorted(names_in(folder / "streams" / "s")) == [f"{number:020}" for number in (1, 2)]
    assert read(folder / "streams" / "s" / "0") == b"0"


# The mount itself.


async def test_the_readme_names_every_file(both):
    folder, _ = both
    text = (folder / "README").read_text()
    for name in names_in(folder):
        assert name == "README" or name in text
    assert "1016 bytes" in text


async def test_what_is_counted_shows_as_attributes_of_the_folder(both):
    folder, _ = both
    register(folder, "A")
    with Raw(folder) as client:
        client.publish(0, b"x")
        found = {name: os.getxattr(folder, name) for name in os.listxattr(folder)}
    assert (found["user.busway.channels"], found["user.busway.clients"], found["user.busway.published"]) == (
        b"1",
        b"1",
        b"1",
    )


async def test_files_of_a_bus_that_is_gone(mount, tmp_path):
    """Its operations fail, what was there stays, and it comes back by itself."""
    server = busway.serve(f"unix:{tmp_path}/bus")
    await server.start()
    folder = (await asyncio.to_thread(mount, "--url", f"unix:{tmp_path}/bus")).folder
    path = folder / "topics" / "price"
    await asyncio.to_thread(path.write_text, "1\n")
    await asyncio.to_thread(register, folder, "A")
    await server.stop(0.0)

    def fails(work):
        try:
            work()
        except OSError as error:
            assert error.errno == errno.EIO
            return True
        return False

    await asyncio.to_thread(until, lambda: fails(lambda: path.write_text("2\n")), "writes fail")
    assert await asyncio.to_thread(fails, lambda: register(folder, "B"))
    assert await asyncio.to_thread(fails, lambda: names_in(folder / "streams"))
    assert await asyncio.to_thread(read, path) == b"1\n"
    assert await asyncio.to_thread(listed, folder) == ["A"]
    async with busway.serve(f"unix:{tmp_path}/bus") as again, again.connect() as bus:
        await asyncio.to_thread(until, lambda: not fails(lambda: path.write_text("3\n")), "writes work again")
        async with bus.subscribe("A") as messages:
            with Raw(folder) as client:
                client.subscribe("A")
                again_there = lambda: not fails(lambda: client.publish(0, b"there"))  # noqa: E731
                await asyncio.to_thread(until, again_there, "messages pass again")
                assert (await messages.recv(timeout=PATIENCE)).payload == b"there"
                await bus.publish("A", b"and back")
                got = await asyncio.to_thread(client.wait, 2)
                assert [one.data for one in got] == [b"there", b"and back"]
    assert (await asyncio.to_thread(read, path)).endswith(b"3\n")


async def test_it_ends_by_itself_after_a_time(mount):
    made = mount("--for", "500ms")
    assert await asyncio.to_thread(made.process.wait, PATIENCE) == 0
    assert not names_in(made.folder)
    assert mount(folder=made.folder).end(signal.SIGINT) == 130


def test_in_the_background(tmp_path):
    command = [sys.executable, "-m", "busway", "fusebus", str(tmp_path), "--background", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, env=plain(), timeout=PATIENCE)
    told = json.loads(done.stdout)
    assert told["mount"] == str(tmp_path)
    assert sorted(names_in(tmp_path)) == ["channels", "fusebus"]
    again = subprocess.run(command, check=False, capture_output=True, text=True, env=plain(), timeout=PATIENCE)
    assert again.returncode == 1
    assert "already" in again.stderr
    subprocess.run(["fusermount3", "-u", str(tmp_path)], check=True, timeout=PATIENCE)
    until(lambda: has_ended(told["pid"]), "it has ended")


def has_ended(pid):
    """Also if nobody has taken note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
