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
from tests.support.fusebus_client import Raw, refused, register
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


# Topics.


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


async def test_only_the_newest_are_listed(mount, tmp_path):
    folder = mount("--unix", tmp_path / "bus", "--listed", 2).folder
    async with busway.connect(f"unix:{tmp_path}/bus") as bus:
        await bus.create_stream("s", ["s"])
        await bus.publish_many("s", [b"0", b"1", b"2"], durable=True)
    assert sorted(names_in(folder / "streams" / "s")) == [f"{number:020}" for number in (1, 2)]
    assert read(folder / "streams" / "s" / "0") == b"0"


# The mount itself.


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
