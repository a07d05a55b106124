"""The life of a mount: start and end, traces of a killed one, access of other users, and a lost bus."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fusebus_client import META, WORD, Raw, padded, refused, register
from tests.support.mounts import BUSWAY, PATIENCE, is_mounted, mounted, serving, until, waits

VERBS = ["fusebus", "mount"]


@pytest.fixture
def address():
    with tempfile.TemporaryDirectory(prefix="bus") as folder:
        yield f"unix:{folder}/bus"


# Coming and going.


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_its_end_unmounts(tmp_path: Path, verb: str, number: int) -> None:
    with mounted(verb, folder=tmp_path) as made:
        assert is_mounted(tmp_path)
        assert made.end(number) in (0, 130)
        assert not is_mounted(tmp_path)
        assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("verb", VERBS)
def test_unmounting_ends_it(tmp_path: Path, verb: str) -> None:
    """With the command that every file system in user space is unmounted with."""
    with mounted(verb, folder=tmp_path) as made:
        subprocess.run(["fusermount3", "-u", str(tmp_path)], check=True)
        assert made.process.wait(PATIENCE) == 0


def test_its_end_with_clients(tmp_path: Path) -> None:
    """Who has a file open, or waits in a read, does not keep it; it is told by an error."""
    with mounted("fusebus", folder=tmp_path) as made, Raw(tmp_path) as client:
        client.subscribe("A")
        code = f"import os; print('here', flush=True); os.read({client.fd}, 4096)"
        command = [sys.executable, "-I", "-S", "-c", code]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[client.fd]
        ) as process:
            assert process.stdout.readline() == b"here\n"
            until(lambda: waits(process.pid), "it reads")
            assert made.end() in (0, 130)
            assert process.wait(PATIENCE) == 1
        assert not is_mounted(tmp_path)
        with refused(errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV):
            client.publish(0, b"x")


@pytest.mark.parametrize("verb", VERBS)
def test_a_killed_one_is_repaired_by_the_next(tmp_path: Path, verb: str) -> None:
    """SIGKILL leaves a mount at which every look fails; the next one cleans up by itself."""
    with mounted(verb, folder=tmp_path) as made:
        with Raw(tmp_path) as client:
            made.end(signal.SIGKILL)
            with refused(errno.ENOTCONN, errno.ECONNABORTED):
                client.subscribe("A")
        assert is_mounted(tmp_path)
        with refused(errno.ENOTCONN):
            tmp_path.stat()
        with mounted(verb, folder=tmp_path):
            [channel] = register(tmp_path, "A")
            with Raw(tmp_path) as client:
                client.subscribe("A")
                client.publish(channel, b"again")
                assert [message.data for message in client.wait(1)] == [b"again"]
    assert not is_mounted(tmp_path)


def test_a_killed_one_whose_files_are_still_open(tmp_path: Path) -> None:
    with mounted("fusebus", folder=tmp_path) as made, Raw(tmp_path) as old:
        made.end(signal.SIGKILL)
        with mounted("fusebus", folder=tmp_path):
            [channel] = register(tmp_path, "A")
            with Raw(tmp_path) as client:
                client.subscribe("A")
                client.publish(channel, b"again")
                assert [message.data for message in client.wait(1)] == [b"again"]
                with refused(errno.ENOTCONN, errno.ECONNABORTED):
                    old.publish(channel, b"x")


def test_a_place_with_an_odd_name(tmp_path: Path) -> None:
    place = tmp_path / "a b" / "żółć"
    place.mkdir(parents=True)
    with mounted("fusebus", folder=place) as made:
        made.end(signal.SIGKILL)
        with mounted("fusebus", folder=place):
            register(place, "A")
    assert not is_mounted(place)


def test_who_waits_in_a_read_when_it_is_killed(tmp_path: Path) -> None:
    with mounted("fusebus", folder=tmp_path) as made, Raw(tmp_path) as client:
        code = f"import os; print('here', flush=True); os.read({client.fd}, 4096)"
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[client.fd],
        ) as process:
            assert process.stdout.readline() == b"here\n"
            until(lambda: waits(process.pid), "it reads")
            made.end(signal.SIGKILL)
            assert b"Error" in process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == 1


def test_a_living_one_is_not_pushed_aside(tmp_path: Path) -> None:
    """What looks like a mount of ours and answers is one."""
    with mounted("fusebus", folder=tmp_path) as made:
        second = subprocess.run(
            [*BUSWAY, "fusebus", str(tmp_path)], check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        assert second.returncode not in (0, None)
        assert str(tmp_path) in second.stderr
        assert "Traceback" not in second.stderr
        assert made.process.poll() is None
        register(tmp_path, "A")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda path: None, "there is no folder"),
        (lambda path: path.write_text("x"), "is not a folder"),
    ],
    ids=["no folder", "a file"],
)
def test_a_place_that_can_not_be(tmp_path: Path, make, word: str) -> None:
    place = tmp_path / "place"
    make(place)
    done = subprocess.run(
        [*BUSWAY, "fusebus", str(place)], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode != 0
    assert str(place) in done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


# Whom it lets in.

LOOK = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in ("", "/channels", "/fusebus"):
    try:
        if name == "":
            os.listdir(sys.argv[1])
        else:
            os.close(os.open(sys.argv[1] + name, os.O_RDWR))
    except PermissionError:
        print("refused")
    else:
        print("open")
"""


def look_as_nobody(folder: Path) -> list[str]:
    command = [sys.executable, "-I", "-S", "-c", LOOK, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.split()


@pytest.fixture
def open_folder():
    """One that everybody reaches: those of pytest are for their owner alone."""
    with tempfile.TemporaryDirectory(prefix="busway-open-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        place = Path(path) / "mount"
        place.mkdir(mode=0o755)
        yield place


@pytest.mark.parametrize("verb", VERBS)
def test_only_the_owner(open_folder: Path, verb: str) -> None:
    with mounted(verb, folder=open_folder):
        assert look_as_nobody(open_folder) == ["refused"] * 3


def test_others_when_they_are_allowed(open_folder: Path) -> None:
    with mounted("fusebus", "--allow-other", folder=open_folder):
        assert look_as_nobody(open_folder) == ["open"] * 3


def test_the_modes_of_the_files(tmp_path: Path) -> None:
    with mounted("fusebus", folder=tmp_path):
        for name in ("channels", "fusebus"):
            about = (tmp_path / name).stat()
            assert about.st_mode & 0o777 == 0o600
            assert (about.st_uid, about.st_gid) == (os.getuid(), os.getgid())


# Where it can't be.


def without(*words: str) -> list[str]:
    """Words of a command that takes something away from what follows it."""
    assert os.geteuid() == 0, "only root can do that"
    assert shutil.which(words[0]) is not None, words[0]
    return list(words)


WITHOUT = {
    "the device": [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$@"',
        "sh",
    ],
    "permission": ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
}


@pytest.mark.parametrize("words", WITHOUT.values(), ids=WITHOUT)
def test_what_is_missing_is_told(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [*without(*words), *BUSWAY, "fusebus", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode not in (0, None)
    assert "fuse" in done.stderr
    assert "Traceback" not in done.stderr
    assert not is_mounted(tmp_path)


# The bus behind it.


def test_a_bus_that_goes_away_and_comes_back(tmp_path: Path, address: str) -> None:
    """EIO while it is away, and then everything works again, for those who had their files open all the time."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(address))
        stack.enter_context(mounted("mount", "--url", address, folder=tmp_path))
        [channel] = register(tmp_path, "A")
        client = stack.enter_context(Raw(tmp_path))
        client.subscribe("A")
        client.publish(channel, b"before")
        assert [message.data for message in client.wait(1)] == [b"before"]
        server.kill()
        server.wait()

        until(lambda: fails_with_eio(lambda: client.publish(channel, b"lost")), "a write says EIO")
        assert sorted(one.name for one in tmp_path.iterdir() if one.name in ("channels", "fusebus")) == [
            "channels",
            "fusebus",
        ]
        stack.enter_context(serving(address))

        until(lambda: not fails_with_eio(lambda: client.publish(channel, b"after")), "a write works again")
        until(lambda: client.ready() and client.all()[-1].data == b"after", "the message comes")


def test_every_file_says_so_while_the_bus_is_away(tmp_path: Path, address: str) -> None:
    """EIO at once, nothing waits; what is kept can be read; and then it works again."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(address))
        stack.enter_context(mounted("mount", "--url", address, folder=tmp_path))
        topic = tmp_path / "topics" / "t"
        topic.write_text("1\n")
        asked = os.open(tmp_path / "services" / "s", os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, asked)
        server.kill()
        server.wait()
        until(lambda: fails_with_eio(lambda: topic.write_text("2\n")), "a write says EIO")
        assert topic.read_text() == "1\n"
        os.write(asked, b"anybody?")
        for call in (
            lambda: os.read(asked, 100),
            lambda: (tmp_path / "channels").write_text("A\n"),
            lambda: (tmp_path / "topics" / "other").write_text("x\n"),
            lambda: (tmp_path / "json" / "t").write_text('{"payload": 1}\n'),
            lambda: list((tmp_path / "streams").iterdir()),
        ):
            with refused(errno.EIO):
                call()
        assert (tmp_path / "channels").read_text() == ""
        stack.enter_context(serving(address))
        until(lambda: not fails_with_eio(lambda: topic.write_text("3\n")), "a write works again")
        assert topic.read_text() == "1\n3\n"
        until(lambda: not fails_with_eio(lambda: register(tmp_path, "A")), "a channel can be registered again")
        assert [one.name for one in (tmp_path / "streams").iterdir()] == ["default"]


def fails_with_eio(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EIO
        return True
    return False


def test_a_mount_of_a_bus_that_is_not_there(tmp_path: Path, address: str) -> None:
    done = subprocess.run(
        [*BUSWAY, "mount", str(tmp_path), "--url", address],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not is_mounted(tmp_path)


def test_two_mounts_of_one_bus(tmp_path: Path, address: str) -> None:
    """A channel is a topic of the bus, so clients of one mount hear those of another, by the name."""
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(address))
        for place in places:
            stack.enter_context(mounted("mount", "--url", address, folder=place))
        one, two = (stack.enter_context(Raw(place)) for place in places)
        register(places[0], "SHARED")
        register(places[1], "OTHER", "SHARED")
        two.subscribe("SHARED")
        one.publish(0, b"over the bus")
        [message] = two.wait(1)
        assert (message.channel, message.data) == (1, b"over the bus")


# Large messages.

MIB = 1 << 20


def test_messages_of_a_mebibyte(tmp_path: Path) -> None:
    with mounted("fusebus", "--max-message", MIB, folder=tmp_path):
        [channel] = register(tmp_path, "LARGE")
        data = os.urandom(MIB)
        with Raw(tmp_path) as publisher, Raw(tmp_path) as reader:
            reader.subscribe("LARGE")
            for cut in (0, 1, 5000):
                assert publisher.publish(channel, data[cut:]) == 16 + MIB - cut
                [message] = reader.read(MIB + 8192)
                assert (message.size, message.stride) == (MIB - cut, padded(MIB - cut))
                assert message.data == data[cut:]
            for more in (1, 100, MIB, 3 * MIB):
                with contextlib.suppress(
                    OSError
                ):  # EMSGSIZE, or, of what comes in parts, a write that is shorter than it should be
                    assert publisher.publish(channel, data + bytes(more)) < 16 + MIB + more
            publisher.publish(channel, b"small")
            assert [message.data for message in reader.wait(1)] == [b"small"]


@pytest.mark.parametrize("size", [MIB - 20_000, MIB - 4096 - 16, MIB - 100, MIB - 16, MIB, 2 * MIB, 3 * MIB])
def test_parts_that_lie_in_different_places(large: Path, size: int) -> None:
    """The kernel cuts a long write, and earlier one whose parts lie in different places; it is one message all the same."""
    [channel] = register(large, f"PARTS{size}")
    data = os.urandom(size)
    with Raw(large) as publisher, Raw(large) as reader:
        reader.subscribe(f"PARTS{size}")
        kinds = WORD.pack(2), WORD.pack(channel)
        for parts in ([b"".join((*kinds, data))], [b"".join(kinds), data], [*kinds, data]):
            assert os.writev(publisher.fd, parts) == 16 + size
            [message] = reader.read(4 * MIB)
            assert (message.size, message.data == data) == (size, True)


@pytest.fixture(scope="module")
def large():
    with mounted("fusebus", "--max-message", 3 * MIB, "--bytes", 32 * MIB) as made:
        yield made.folder


def test_large_and_small_ones_in_turn(tmp_path: Path) -> None:
    sizes = [1, 300_000, 16, MIB, 0, 131_072, 131_073, 70_000]
    with mounted("fusebus", "--max-message", MIB, folder=tmp_path):
        [channel] = register(tmp_path, "MIXED")
        with Raw(tmp_path) as publisher, Raw(tmp_path) as reader:
            reader.subscribe("MIXED")
            for number, size in enumerate(sizes):
                publisher.publish(channel, bytes([number]) * size)
            found = []
            while len(found) < len(sizes):
                assert reader.ready(PATIENCE)
                found += reader.read(2 * MIB)
            assert [message.data for message in found] == [bytes([number]) * size for number, size in enumerate(sizes)]
            assert META.size == 40
