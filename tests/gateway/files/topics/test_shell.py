"""A mounted bus from the shell: tail, echo, cat, dd, select and others, each a process of its own, as the README of a mount says."""

import errno
import itertools
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import busway.sync
from tests.support.fusebus_client import META, WORD, Raw, refused, register
from tests.support.mounts import PATIENCE, Later, mounted, until, waits

numbers = itertools.count()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    return f"unix:{tmp_path_factory.mktemp('bus') / 'bus'}"


@pytest.fixture(scope="module")
def folder(address: str) -> Iterator[Path]:
    """A mount with a bus of its own, which others reach at an address."""
    with mounted("mount", "--unix", address.removeprefix("unix:")) as made:
        yield made.folder


@pytest.fixture
def bus(folder: Path, address: str) -> Iterator[busway.sync.Bus]:
    """Somebody who is on the bus itself."""
    with busway.sync.connect(address, name="native") as made:
        yield made


@pytest.fixture
def name() -> str:
    """A topic that no other test has."""
    return f"shell{next(numbers)}"


def sh(folder: Path, script: str, *words: str) -> str:
    """Run it with bash in the mount; what it printed."""
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{script}: {done.returncode}: {done.stderr}"
    return done.stdout


class Started:
    """A program that runs on, with a line of its output at a time."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        while b"\n" not in self._read:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "no line came"
            more = os.read(self.process.stdout.fileno(), 65_536)
            assert more, "the program has ended"
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode() + "\n"


# topics


def test_echo_and_cat(folder: Path, name: str) -> None:
    assert sh(folder, "echo 3012.5 > topics/$1; cat topics/$1", name) == "3012.5\n"
    assert sh(folder, "echo 3013 >> topics/$1; cat topics/$1; cat topics/$1", name) == "3012.5\n3013\n" * 2


def test_tail_f(folder: Path, name: str) -> None:
    """It prints what is there, and then each line as it comes, whoever wrote it."""
    sh(folder, "echo old > topics/$1", name)
    with Started(folder, "tail", "-n", "+1", "-f", "-s", "0.1", f"topics/{name}") as tail:
        assert tail.line() == "old\n"
        for number in range(5):
            sh(folder, "echo $2 > topics/$1", name, str(number))
            assert tail.line() == f"{number}\n"
        sh(folder, "printf 'a\\nb\\nc' > topics/$1", name)
        assert [tail.line() for _ in range(3)] == ["a\n", "b\n", "c\n"]


def test_tail_f_of_two_topics_in_folders(folder: Path, name: str) -> None:
    sh(folder, "mkdir -p topics/$1/eth; touch topics/$1/eth/eur topics/$1/eth/usd", name)
    with Started(folder, "tail", "-q", "-f", "-s", "0.1", f"topics/{name}/eth/eur", f"topics/{name}/eth/usd") as tail:
        sh(folder, "echo 1 > topics/$1/eth/eur", name)
        assert tail.line() == "1\n"
        sh(folder, "echo 2 > topics/$1/eth/usd", name)
        assert tail.line() == "2\n"


def test_a_topic_that_was_never_used(folder: Path, name: str) -> None:
    """Written with %2F a topic with slashes needs neither folder nor touch."""
    with Started(folder, "tail", "-f", "-s", "0.1", f"topics/{name}%2Feth") as tail:
        until((folder / "topics" / name).is_dir, "the topic is listed")
        sh(folder, "echo 1 > topics/$1/eth", name)
        assert tail.line() == "1\n"
    with pytest.raises(FileNotFoundError):
        (folder / "topics" / "never used").read_text()


def test_each_line_is_a_message(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    """Also over several writes, and what has no newline when it is closed; the file gives that one."""
    with bus.subscribe(name) as messages:
        fd = os.open(folder / "topics" / name, os.O_WRONLY | os.O_CREAT)
        for part in (b"one\ntw", b"o", b"\n\nfour"):
            os.write(fd, part)
        os.close(fd)
        assert [messages.recv(PATIENCE).payload for _ in range(4)] == [b"one", b"two", b"", b"four"]
    assert (folder / "topics" / name).read_bytes() == b"one\ntwo\n\nfour\n"


def test_what_a_native_client_publishes_is_a_line(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    sh(folder, "touch topics/$1", name)
    with Started(folder, "tail", "-f", "-s", "0.1", f"topics/{name}") as tail:
        bus.publish(name, b"from the bus")
        assert tail.line() == "from the bus\n"
        bus.publish(name, b"with its own\n")
        assert tail.line() == "with its own\n"


def test_what_is_written_is_published_when_the_program_has_ended(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    """`echo` has closed the file, and the message is at the broker."""
    with bus.subscribe(name) as messages:
        sh(folder, "echo hello > topics/$1", name)
        message = messages.recv(PATIENCE)
        assert (message.topic, message.payload) == (name, b"hello")


def test_dd(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    text = "".join(f"line {number}\n" for number in range(300))
    with bus.subscribe(name) as messages:
        done = subprocess.run(
            ["dd", f"of=topics/{name}", "bs=77", "status=none"],
            check=True,
            cwd=folder,
            input=text.encode(),
            timeout=PATIENCE,
        )
        assert done.returncode == 0
        assert [messages.recv(PATIENCE).text for _ in range(300)] == text.splitlines()
    assert sh(folder, "dd if=topics/$1 bs=64 status=none", name) == text
    assert sh(folder, "dd if=topics/$1 bs=7 skip=1 count=1 status=none", name) == text[7:14]


def test_other_programs(folder: Path, name: str) -> None:
    """The length of the file is that of its lines, so those who ask for it first are right."""
    sh(folder, "seq 100 > topics/$1", name)
    assert sh(folder, "wc -l < topics/$1; tail -n 2 topics/$1; head -n 1 topics/$1", name) == "100\n99\n100\n1\n"
    assert sh(folder, "grep -c 7 topics/$1; sort -rn topics/$1 | head -n 1", name) == "19\n100\n"
    assert sh(folder, "stat -c %s topics/$1", name) == f"{len(''.join(f'{n}{chr(10)}' for n in range(1, 101)))}\n"


def test_select_from_another_process(folder: Path, name: str) -> None:
    """One that knows nothing of Busway: readable exactly when a line has come."""
    code = """
import os, select, sys
fd = os.open(sys.argv[1], os.O_RDWR)
print(len(select.select([fd], [], [], 0)[0]), flush=True)
for _ in range(3):
    select.select([fd], [], [], 60)
    print(os.read(fd, 4096).decode().strip(), len(select.select([fd], [], [], 0)[0]), flush=True)
"""
    sh(folder, "echo before > topics/$1", name)
    with Started(folder, sys.executable, "-I", "-S", "-c", code, f"topics/{name}") as other:
        assert other.line() == "0\n"
        for number in range(3):
            until(lambda: waits(other.process.pid), "it waits")
            sh(folder, "echo $2 > topics/$1", name, str(number))
            assert other.line() == f"{number} 0\n"


def test_select_of_a_file_that_is_only_read(folder: Path, name: str) -> None:
    sh(folder, "echo 1 > topics/$1", name)
    fd = os.open(folder / "topics" / name, os.O_RDONLY)
    assert select.select([fd], [], [], 0)[0] == [fd]
    assert os.read(fd, 100) == b"1\n"
    assert select.select([fd], [], [], 0)[0] == []
    assert os.read(fd, 100) == b""  # a file ends; it does not wait
    later = Later(lambda: select.select([fd], [], [], PATIENCE)[0])
    sh(folder, "touch topics/$1", name)
    assert not later.over()
    sh(folder, "echo 2 > topics/$1", name)
    assert later.result() == [fd]
    assert os.read(fd, 100) == b"2\n"
    os.close(fd)


def test_read_t_of_bash(folder: Path, name: str) -> None:
    """`read -t 0` asks select whether there is something. (Of a time bash thinks that a file needs none: `timeout` is for that.)"""
    script = """
exec 3<>topics/$1
read -t 0 <&3 && exit 1
echo hello > topics/$1
until read -t 0 <&3; do :; done
read -r line <&3 && echo "got $line"
read -t 0 <&3 && exit 2
echo answer >&3
read -r line <&3 && echo "and $line"
timeout 0.1 head -n 1 <&3
test $? = 124 && echo "no more"
"""
    sh(folder, "touch topics/$1", name)
    assert sh(folder, script, name) == "got hello\nand answer\nno more\n"


def test_a_shell_that_waits_for_another(folder: Path, name: str) -> None:
    sh(folder, "touch topics/$1", name)
    script = f'exec 3<>topics/{name}; echo ready; while read -r line <&3; do echo "got $line"; done'
    with Started(folder, "bash", "-c", script) as reader:
        assert reader.line() == "ready\n"
        for word in ("a", "b b", "c"):
            sh(folder, 'echo "$2" > topics/$1', name, word)
            assert reader.line() == f"got {word}\n"


def test_wildcards(folder: Path, name: str) -> None:
    with Started(folder, "tail", "-f", "-s", "0.1", f"topics/{name}%2F**") as tail:
        until((folder / "topics" / name).is_dir, "the topic is listed")
        sh(folder, "mkdir -p topics/$1/a; echo 1 > topics/$1/a/b", name)
        assert tail.line() == "1\n"
        sh(folder, "echo 2 > topics/$1/c", name)
        assert tail.line() == "2\n"


def test_making_and_removing(folder: Path, name: str) -> None:
    sh(folder, "mkdir topics/$1; touch topics/$1/a", name)
    assert sh(folder, "ls topics/$1", name) == "a\n"
    assert "not empty" in sh(folder, "rmdir topics/$1 2>&1 || true", name)
    sh(folder, "rm topics/$1/a; rmdir topics/$1", name)
    assert name not in sh(folder, "ls topics")


@pytest.mark.parametrize("wrong", ["a%00b", "a%0Ab", "%2F", "%24bus%2Finfo", "%FF"])
def test_names_that_can_not_be_topics(folder: Path, wrong: str) -> None:
    for top in ("topics", "json", "services"):
        with refused(errno.ENOENT, errno.EINVAL):
            os.close(os.open(folder / top / wrong, os.O_RDWR | os.O_CREAT))


def test_a_line_that_is_too_long(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    """Nothing of it is published, be it as the rest of it when the file is closed."""
    fd = os.open(folder / "topics" / name, os.O_WRONLY | os.O_CREAT)
    with bus.subscribe(name) as messages:
        with refused(errno.EMSGSIZE):
            for _ in range(64):
                os.write(fd, b"x" * 65_536)
        os.close(fd)
        (folder / "topics" / name).write_text("fits\n")
        assert messages.recv(PATIENCE).payload == b"fits"
    assert os.getxattr(folder / "topics" / name, "user.busway.refused") == b"1"


@pytest.mark.parametrize("how", ["cat > topics/$1", "dd bs=1M iflag=fullblock of=topics/$1"])
def test_a_line_that_is_too_long_from_a_program(folder: Path, bus: busway.sync.Bus, name: str, how: str) -> None:
    with bus.subscribe(name) as messages:
        printed = sh(
            folder,
            f"export LC_ALL=C; exec 2>&1; head -c 3000000 /dev/zero | tr '\\0' x | {how} || echo failed; echo fits > topics/$1",
            name,
        )
        assert "Message too long" in printed
        assert "failed" in printed
        assert messages.recv(PATIENCE).payload == b"fits"


def test_what_follows_a_line_that_is_too_long(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    fd = os.open(folder / "topics" / name, os.O_WRONLY | os.O_CREAT)
    with bus.subscribe(name) as messages:
        os.write(fd, b"x" * 600_000)
        for _ in range(2):
            with refused(errno.EMSGSIZE):
                os.write(fd, b"x" * 600_000)
        assert os.write(fd, b"xx\nnext\n") == 8
        os.close(fd)
        assert messages.recv(PATIENCE).payload == b"next"
    assert os.getxattr(folder / "topics" / name, "user.busway.refused") == b"1"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR], ids=["file", "conversation"])
def test_a_reader_that_is_too_slow_skips_whole_lines(folder: Path, name: str, flags: int) -> None:
    """It was in the middle of a line: that ends, the next one is whole, and those between are counted."""
    path, count = folder / "topics" / name, 60_000
    path.touch()
    lines = [f"line-{number:06}-end" for number in range(count)]
    fd = os.open(path, flags)
    try:
        path.write_text("".join(f"{line}\n" for line in lines[:100]))
        got = os.read(fd, 1000)
        path.write_text("".join(f"{line}\n" for line in lines[100:]))
        while int(os.getxattr(path, "user.busway.lines")) < count:  # all have come back, so that it falls behind once
            assert select.select([fd], [], [], PATIENCE)[0], "more come"
        while not got.endswith(b"-059999-end\n"):
            assert select.select([fd], [], [], PATIENCE)[0], "the last line comes"
            got += os.read(fd, 65_536)
        found = got.decode().splitlines()
        assert found[62] == "line-000"
        assert found[:62] == lines[:62]
        assert found[63:] == lines[-len(found[63:]) :]
        missed = int(os.getxattr(path, "user.busway.missed"))
        assert missed == count - (len(found) - 1)
        assert missed > 1000
    finally:
        os.close(fd)


def test_lines_that_are_kept(folder: Path, name: str) -> None:
    """256 KiB of a topic are kept; the oldest lines go. Who comes later has missed nothing."""
    sh(folder, "seq 100000 > topics/$1", name)
    lines = [int(line) for line in sh(folder, "cat topics/$1", name).split()]
    assert lines == list(range(lines[0], 100_001))
    assert 1 < lines[0] < 100_000
    assert sh(folder, "touch topics/$1; cat topics/$1 > /dev/null; tail -n 1 topics/$1", name) == "100000\n"
    assert os.getxattr(folder / "topics" / name, "user.busway.missed") == b"0"


# json


def test_json_lines(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    sh(folder, "touch json/$1", name)
    with Started(folder, "tail", "-f", "-s", "0.1", f"json/{name}") as tail:
        bus.publish(name, b"1", fields={"venue": "krk", "n": 2})
        found = json.loads(tail.line())
        assert (found["topic"], found["payload"], found["sender"]) == (name, "1", "native")
        assert found["fields"] == {"venue": "krk", "n": 2}
        bus.publish(name, b"\xff")
        assert json.loads(tail.line())["payload_base64"] == "/w=="
    lines = '{"payload": {"a": [1]}, "fields": {"venue": "bin"}}\n{"payload": "text"}\n'
    with bus.subscribe(name) as messages:
        (folder / "json" / name).write_text(lines)
        first, second = messages.recv(PATIENCE), messages.recv(PATIENCE)
        assert (first.json(), first.fields) == ({"a": [1]}, {"venue": "bin"})
        assert (second.payload, second.fields) == (b"text", {})


@pytest.mark.parametrize("line", ["no json", '{"payload": 1', '{"other": 1}', "[]", '{"payload": 1, "fields": 2}'])
def test_lines_that_are_no_json(folder: Path, name: str, line: str) -> None:
    fd = os.open(folder / "json" / name, os.O_WRONLY | os.O_CREAT)
    with refused(errno.EINVAL):
        os.write(fd, line.encode() + b"\n")
    os.close(fd)


# Extended attributes


def test_fields_as_attributes(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    path = folder / "topics" / name
    path.touch()
    os.setxattr(path, "user.busway.field.venue", b"krk")
    os.setxattr(path, "user.busway.field.level", b"3")
    assert os.getxattr(path, "user.busway.field.venue") == b"krk"
    wanted = {"user.busway.topic", "user.busway.lines", "user.busway.field.venue", "user.busway.field.level"}
    assert wanted <= set(os.listxattr(path))
    with bus.subscribe(name) as messages:
        sh(folder, "echo 1 > topics/$1", name)
        assert messages.recv(PATIENCE).fields == {"venue": "krk", "level": 3}
        os.removexattr(path, "user.busway.field.venue")
        sh(folder, "echo 2 > topics/$1", name)
        assert messages.recv(PATIENCE).fields == {"level": 3}
    assert os.getxattr(path, "user.busway.last.field.level") == b"3"
    assert os.getxattr(path, "user.busway.topic") == name.encode()
    for wrong, code in (
        ("user.other", errno.EPERM),
        ("user.busway.topic", errno.EPERM),
        ("user.busway.field..ts", errno.EINVAL),
    ):
        with refused(code):
            os.setxattr(path, wrong, b"x")
    for missing in ("user.busway.field.none", "user.busway.nothing"):
        with refused(errno.ENODATA):
            os.getxattr(path, missing)
    with refused(errno.ENODATA):
        os.removexattr(path, "user.busway.field.venue")


def test_getfattr(folder: Path, name: str) -> None:
    sh(folder, "touch topics/$1; setfattr -n user.busway.field.venue -v krk topics/$1", name)
    assert 'user.busway.field.venue="krk"' in sh(folder, "getfattr -d topics/$1", name)


def test_counters_of_the_two_files(folder: Path) -> None:
    register(folder, "COUNTED")
    assert int(os.getxattr(folder / "channels", "user.busway.channels")) == len(
        (folder / "channels").read_text().splitlines()
    )
    before = int(os.getxattr(folder / "fusebus", "user.busway.clients"))
    with Raw(folder):
        assert int(os.getxattr(folder / "fusebus", "user.busway.clients")) == before + 1


# services


def test_a_request_and_its_reply(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    with bus.serve(name, lambda message: json.dumps(sum(message.json()))):
        script = "exec 3<>services/$1; echo '[1,2]' >&3; cat <&3; echo; echo '[3,4]' >&3; cat <&3"
        sh(folder, "touch services/$1", name)
        assert sh(folder, script, name) == "3\n7"


def test_a_service_that_takes_its_time_is_polled(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    with bus.serve(name, lambda message: message.payload[::-1]):
        fd = os.open(folder / "services" / name, os.O_RDWR | os.O_CREAT)
        with refused(errno.ENODATA):
            os.read(fd, 100)  # nothing was asked
        assert select.select([fd], [], [], 0)[0] == []
        later = Later(lambda: select.select([fd], [], [], PATIENCE)[0])
        os.write(fd, b"abc")
        assert later.result() == [fd]
        assert os.read(fd, 100) == b"cba"
        assert os.read(fd, 100) == b""
        assert select.select([fd], [], [], 0)[0] == []
        os.close(fd)


def test_a_reply_in_small_reads(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    with bus.serve(name, lambda message: message.payload * 1000):
        sh(folder, "touch services/$1", name)
        script = "exec 3<>services/$1; printf 12345 >&3; dd bs=100 status=none <&3 | wc -c"
        assert sh(folder, script, name) == "5000\n"


# streams


def test_stored_messages_are_files(bus: busway.sync.Bus, folder: Path, name: str) -> None:
    bus.create_stream(name, topics=[f"{name}/**"], store="memory")
    for number in range(3):
        bus.publish(f"{name}/a", f"message {number}", durable=True, fields={"n": number, "venue": "krk"})
    assert name in sh(folder, "ls streams").split()
    names = sh(folder, "ls streams/$1", name).split()
    assert [int(one) for one in names] == list(range(int(names[0]), int(names[0]) + 3))
    assert sh(folder, "cat streams/$1/*", name) == "message 0message 1message 2"
    last = folder / "streams" / name / names[-1]
    assert last.stat().st_size == len("message 2")
    assert os.getxattr(last, "user.busway.topic") == f"{name}/a".encode()
    assert os.getxattr(last, "user.busway.field.n") == b"2"
    assert os.getxattr(last, "user.busway.field.venue") == b"krk"
    assert last.stat().st_mode & 0o222 == 0
    with refused(errno.EACCES, errno.EPERM, errno.EROFS):
        last.write_text("x")
    with refused(errno.EACCES, errno.EPERM, errno.EROFS):
        last.unlink()
    assert os.getxattr(last, "user.busway.offset") == b"%d" % int(names[-1])
    assert (folder / "streams" / name / str(int(names[-1]))).read_bytes() == b"message 2"
    for missing in (f"{name}/{int(names[-1]) + 1}", f"{name}/x", f"{name}/{'9' * 20}", "no such stream/0", "a\nb"):
        with refused(errno.ENOENT):
            (folder / "streams" / missing).read_bytes()
    with refused(errno.ENOENT):
        os.stat(os.fsencode(folder) + b"/streams/\xff")  # noqa: PTH116
    with refused(errno.EACCES, errno.EPERM):
        (folder / "streams" / name / "new").write_bytes(b"x")
    bus.publish(f"{name}/b", "one more", durable=True)
    assert len(sh(folder, "ls streams/$1", name).split()) == 4


# channels and fusebus


def test_channels_from_the_shell(folder: Path, name: str) -> None:
    register(folder, f"{name}-first")
    with Started(folder, "tail", "-n", "1", "-f", "-s", "0.1", "channels") as tail:
        assert tail.line() == f"{name}-first\n"
        sh(folder, "echo $1 >> channels; echo $1 > channels; printf $1 >> channels", name)
        assert tail.line() == f"{name}\n"
    assert sh(folder, "grep -cx $1 channels", name) == "1\n"
    number = int(sh(folder, "grep -nx $1 channels | cut -d: -f1", name)) - 1
    assert register(folder, name) == [number]
    text = (folder / "channels").read_text()
    assert sh(folder, "dd if=channels bs=1 skip=3 count=5 status=none") == text[3:8]


def test_dd_of_messages(folder: Path, name: str) -> None:
    """One block is one message; a block that is read has whole ones."""
    [channel] = register(folder, name)
    with Raw(folder) as client:
        client.subscribe(name)
        message = WORD.pack(2) + WORD.pack(channel) + b"from dd"
        subprocess.run(
            ["dd", "of=fusebus", "bs=4096", "conv=notrunc", "status=none"], check=True, cwd=folder, input=message
        )
        assert client.ready(PATIENCE)
        read = subprocess.run(
            ["dd", "bs=4096", "count=1", "status=none"], check=True, capture_output=True, stdin=client.fd
        ).stdout
        assert META.unpack(read[:40])[3] == 7
        assert read[40:47] == b"from dd"


def test_a_channel_is_a_topic(folder: Path, bus: busway.sync.Bus, name: str) -> None:
    """What is written to one file reaches the others, and the bus, and comes back from there."""
    [channel] = register(folder, name)
    with Raw(folder) as client, bus.subscribe(name) as messages:
        client.subscribe(name)
        sh(folder, "echo from the shell > topics/$1", name)
        assert [message.data for message in client.wait(1)] == [b"from the shell"]
        assert messages.recv(PATIENCE).payload == b"from the shell"
        client.publish(channel, b"from the file")
        assert [message.data for message in client.wait(1)] == [b"from the file"]
        assert messages.recv(PATIENCE).payload == b"from the file"
        until(
            lambda: sh(folder, "cat topics/$1", name) == "from the shell\nfrom the file\n", "the topic has both lines"
        )
        bus.publish(name, b"from the bus")
        assert [message.data for message in client.wait(1)] == [b"from the bus"]


def test_serial_and_client_numbers_are_kept(folder: Path, bus: busway.sync.Bus, address: str, name: str) -> None:
    """A native subscriber has them as fields; a reader of the file knows native publishers from each other, and from clients."""
    [channel] = register(folder, name)
    with (
        Raw(folder) as one,
        Raw(folder) as two,
        busway.sync.connect(address) as other,
        bus.subscribe(name) as messages,
    ):
        one.subscribe(name)
        for client in (one, two, one):
            client.publish(channel, b"x")
        bus.publish(name, b"y")
        bus.publish(name, b"y")
        other.publish(name, b"z", confirm=True)
        read = one.wait(6)
        heard = [message for _ in range(6) if "serno" in (message := messages.recv(PATIENCE)).fields]
        assert [(message.serno, message.client) for message in read[:3]] == [
            (message.fields["serno"], message.fields["client"]) for message in heard
        ]
        assert {message.client for message in read if message.data == b"x"} == {read[0].client, read[1].client}
        [native] = {message.client for message in read if message.data == b"y"}
        [second] = {message.client for message in read if message.data == b"z"}
        assert native != second
        assert min(native, second) >= 1 << 63 > read[0].client
        assert [message.serno for message in read] == list(range(read[0].serno, read[0].serno + 6))


# All of it


def test_everything_is_listed_in_the_readme(folder: Path) -> None:
    readme = sh(folder, "cat README")
    listed = sh(folder, "ls").split()
    assert {"README", "channels", "fusebus", "topics", "streams", "services"} <= set(listed)
    for one in set(listed) - {"README"}:
        assert f"\n{one}" in readme, f"the README says nothing of {one}"
    assert "1016 bytes" in readme
    assert len(readme) == (folder / "README").stat().st_size
    with refused(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
        (folder / "README").write_text("x")
    assert sh(folder, "cat README") == readme


def test_looking_around(folder: Path, name: str) -> None:
    """Programs that walk through folders find an end."""
    sh(folder, "mkdir -p topics/$1/a/b; touch topics/$1/a/b/c", name)
    assert f"./topics/{name}/a/b/c" in sh(folder, "find . -type f").splitlines()
    assert (
        sh(folder, "ls -lR > /dev/null; du -s . > /dev/null; df . > /dev/null; test -w channels && echo fine")
        == "fine\n"
    )
