"""The C header and its example: compiled strictly, as C and as C++, and run against a real mount."""

import errno
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.support.fusebus_client import Raw, register
from tests.support.mounts import PATIENCE, mounted

EXAMPLE = Path(__file__).parents[4] / "examples" / "fusebus"
DRIVER = Path(__file__).with_name("header.c")
STRICT = ["-Wall", "-Wextra", "-Werror"]
COMPILERS = {
    "c99": ["cc", "-std=c99"],
    "c11 pedantic": ["cc", "-std=c11", "-pedantic", "-Wconversion"],
    "gnu17": ["cc", "-std=gnu17"],
    "c++11": ["c++", "-std=c++11", "-x", "c++"],
    "c++17 pedantic": ["c++", "-std=c++17", "-x", "c++", "-pedantic"],
}


def compiled(source: Path, target: Path, compiler: list[str]) -> Path:
    done = subprocess.run(
        [*compiler, *STRICT, f"-I{EXAMPLE}", str(source), "-o", str(target)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def folder():
    with mounted("fusebus", "--max-message", 3 << 20, "--bytes", 16 << 20) as made:
        yield made.folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    return compiled(DRIVER, tmp_path_factory.mktemp("header") / "driver", COMPILERS["c99"])


class Driven:
    """A C program that does what it is told, a line each."""

    def __init__(self, driver: Path, folder: Path, wait: bool = True) -> None:
        command = [str(driver), str(folder), "wait" if wait else "no"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "open\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def say(self, *words: object) -> None:
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def hear(self) -> list[str]:
        return self._process.stdout.readline().split()

    def ask(self, *words: object) -> list[str]:
        self.say(*words)
        return self.hear()

    def number(self, *words: object) -> int:
        verb, number = self.ask(*words)
        assert verb == words[0]
        return int(number)


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
def test_the_example(compiler: list[str], folder: Path, tmp_path: Path) -> None:
    """What the document's own example does: two channels, a regular expression, "Hello World!" and "Goodbye!"."""
    program = compiled(EXAMPLE / "chat.c", tmp_path / "chat", compiler)
    with mounted("fusebus") as made:
        for _ in range(2):  # the second one sees what the first left: it is history
            done = subprocess.run([program, made.folder], check=False, capture_output=True, text=True, timeout=PATIENCE)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.splitlines()[:1] == ["CHANNEL_A: Hello World!"]
            assert "CHANNEL_B: Goodbye!" in done.stdout
            assert done.stdout.endswith(", and none after the subscription was given up\n")
    assert compiled(DRIVER, tmp_path / "driver", compiler)


def test_the_example_says_what_is_wrong(tmp_path: Path) -> None:
    program = compiled(EXAMPLE / "chat.c", tmp_path / "chat", COMPILERS["c99"])
    done = subprocess.run(
        [program, tmp_path / "nowhere"], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "nowhere: No such file or directory" in done.stderr


def test_channels_have_their_numbers_and_names(driver: Path, folder: Path) -> None:
    with Driven(driver, folder) as client:
        [known] = register(folder, "HEADER_KNOWN")
        assert client.number("channel", "HEADER_KNOWN") == known
        new = client.number("channel", "HEADER_NEW")
        assert register(folder, "HEADER_NEW") == [new]
        assert client.number("channel", "HEADER") not in (known, new)  # which others begin with
        assert client.ask("name", new) == ["name", "HEADER_NEW"]
        assert client.ask("name", 5000) == ["name", "failed", str(errno.ENOENT)]
        assert client.ask("channel", "*") == ["channel", "failed", str(errno.EINVAL)]


def test_more_channels_than_fit_in_one_read(driver: Path, folder: Path) -> None:
    names = [f"HEADER_LONG_{'x' * 200}_{number}" for number in range(100)]
    numbers = register(folder, *names)
    with Driven(driver, folder) as client:
        assert client.number("channel", names[-1]) == numbers[-1]
        assert client.number("channel", names[0]) == numbers[0]


def test_every_subscription_can_be_removed(driver: Path, folder: Path) -> None:
    """The original's client gave eight bytes from a number of four; and its tenth subscription failed with EIO."""
    with Driven(driver, folder) as client, Raw(folder) as publisher:
        [channel] = register(folder, "Z")
        numbers = [client.number("subscribe", "Z") for _ in range(60)]
        assert len(set(numbers)) == 60
        for number in numbers[:-1]:
            assert client.ask("unsubscribe", number) == ["unsubscribe"]
        publisher.publish(channel, b"1")
        assert client.ask("read")[:2] == ["message", str(channel)]
        assert client.ask("unsubscribe", numbers[-1]) == ["unsubscribe"]
        publisher.publish(channel, b"2")
        assert client.ask("poll", 0) == ["poll", "0"]
        assert client.ask("unsubscribe", numbers[-1]) == ["unsubscribe", "failed", str(errno.ENOENT)]


@pytest.mark.parametrize("size", [0, 1, 1016, 1017, 65_536, 200_000, 1 << 20, 3 << 20])
def test_messages_of_every_size(driver: Path, folder: Path, size: int) -> None:
    """The original's client had 1,024 bytes, in which its own largest message did not fit."""
    name = f"HEADER_SIZE_{size}"
    with Driven(driver, folder) as client:
        channel = client.number("channel", name)
        client.number("subscribe", name)
        assert client.ask("publish", channel, size) == ["publish"]
        assert client.ask("publish", channel, 5) == ["publish"]
        found = client.ask("read")
        assert [int(found[place]) for place in (1, 4, 6)] == [channel, size, size]
        found = client.ask("read")
        assert [int(found[place]) for place in (1, 4, 6)] == [channel, 5, 5]


def test_handle_takes_all_that_one_read_gives(driver: Path, folder: Path) -> None:
    with Driven(driver, folder) as client, Raw(folder) as publisher, Raw(folder) as witness:
        channel = client.number("channel", "HEADER_HANDLE")
        client.number("subscribe", "HEADER_HANDLE")
        witness.subscribe("HEADER_HANDLE")
        for _ in range(30):
            publisher.publish(channel, b"12345")
        witness.wait(30)
        assert client.ask("handle") == ["handle", "30", "30", "150"]
        client.say("handle")  # waits
        publisher.publish(channel, b"123")
        assert client.hear() == ["handle", "1", "1", "3"]


def test_without_waiting(driver: Path, folder: Path) -> None:
    with Driven(driver, folder, wait=False) as client, Raw(folder) as publisher:
        channel = client.number("channel", "HEADER_NONBLOCK")
        client.number("subscribe", "HEADER_NONBLOCK")
        assert client.ask("read") == ["read", "failed", str(errno.EAGAIN)]
        client.say("poll", 60_000)
        publisher.publish(channel, b"x")
        assert client.hear() == ["poll", "1"]
        assert client.ask("read")[:2] == ["message", str(channel)]
        assert client.ask("read") == ["read", "failed", str(errno.EAGAIN)]


def test_errors_of_the_bus_come_through(driver: Path, folder: Path) -> None:
    with Driven(driver, folder) as client:
        assert client.ask("subscribe", "(") == ["subscribe", "failed", str(errno.EINVAL)]
        assert client.ask("publish", 4_000_000, 3)[:2] == ["publish", "failed"]
        assert client.ask("publish", client.number("channel", "HEADER_TOO"), (3 << 20) + 1) == [
            "publish",
            "failed",
            str(errno.EMSGSIZE),
        ]
