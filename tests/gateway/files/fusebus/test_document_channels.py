"""The channel registry of the document, sentence by sentence: each test quotes the sentence it keeps. See test_document.py for the rest."""

import errno
import os
import select
import threading
from pathlib import Path

import pytest

from tests.support.fusebus_client import Raw, listed, refused, register
from tests.support.mounts import Later, mounted


@pytest.fixture
def fresh():
    with mounted("fusebus") as made:
        yield made.folder


def text(folder: Path) -> bytes:
    return (folder / "channels").read_bytes()


def append(folder: Path, data: bytes) -> int:
    fd = os.open(folder / "channels", os.O_WRONLY | os.O_APPEND)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def test_each_message_has_a_channel(fresh: Path) -> None:
    """ "Each message published to the bus is associated with a "channel"." One without, or with a number that no channel has, is none."""
    [channel] = register(fresh, "A")
    with Raw(fresh) as client:
        client.subscribe(".*")
        for wrong in (channel + 1, 500, 1024, 1 << 32, (1 << 64) - 1):
            with refused(errno.EINVAL, errno.ENOENT, errno.ENXIO):
                client.publish(wrong, b"to nowhere")
        client.publish(channel, b"here")
        assert [(message.channel, message.data, message.serno) for message in client.wait(1)] == [(channel, b"here", 0)]
        assert not client.ready()


def test_strings_with_numbers(fresh: Path) -> None:
    """ "Message channels are semantically strings but are represented internally as `uint64_t` numerical ids." """
    names = ["prices", "a name with spaces", "żółć", "price/eth/eur", "x" * 200]
    assert register(fresh, *names) == [0, 1, 2, 3, 4]
    with Raw(fresh) as client:
        for name in names:
            client.subscribe(name)
        for number in range(5):
            client.publish(number, b"%d" % number)
        assert [(message.channel, message.data) for message in client.wait(5)] == [(n, b"%d" % n) for n in range(5)]


def test_the_file_maps_numbers_to_names(fresh: Path) -> None:
    """ "The `channels` file maps these numeric identifiers to their string names." The number is that of the line, from 0."""
    assert text(fresh) == b""
    append(fresh, b"A\n")
    append(fresh, b"B\n")
    assert text(fresh) == b"A\nB\n"


@pytest.mark.parametrize("data", [b"NEW", b"NEW\n"])
def test_a_channel_is_registered_by_writing_its_name(fresh: Path, data: bytes) -> None:
    """ "A new channel can be registered by writting the channel string to the `channels` file." With a line end or without."""
    assert append(fresh, data) == len(data)
    assert text(fresh) == b"NEW\n"


def test_it_is_appended_as_a_line(fresh: Path) -> None:
    """ "If the string is new it will be appended as a new line to the file." Wherever it is written."""
    append(fresh, b"A\n")
    fd = os.open(fresh / "channels", os.O_RDWR)
    assert os.pwrite(fd, b"B", 0) == 1
    assert os.pwrite(fd, b"C\n", 1000) == 2
    os.close(fd)
    assert text(fresh) == b"A\nB\nC\n"


def test_several_at_once(fresh: Path) -> None:
    """ "Channel names are assigned numeric identifiers in the serial order in which they are added": within one write, too."""
    assert append(fresh, b"A\nB\n\nA\nC") == 8
    assert text(fresh) == b"A\nB\nC\n"


def test_a_known_one_is_not_added(fresh: Path) -> None:
    """ "If the string is already a known channel it will not be added." """
    for name in (b"A\n", b"B\n", b"A\n", b"A", b"B\nA\n"):
        assert append(fresh, name) == len(name)
    assert text(fresh) == b"A\nB\n"
    append(fresh, b"AB\nA \n")  # others
    assert text(fresh) == b"A\nB\nAB\nA \n"


def test_in_serial_order(fresh: Path) -> None:
    """ "Channel names are assigned numeric identifiers in the serial order in which they are added." Whoever adds them; no number changes."""
    numbers: dict[str, int] = {}

    def add(who: int) -> None:
        for number in range(25):
            name = f"{who}-{number}"
            [numbers[name]] = register(fresh, name, *())
            register(fresh, f"both-{number}")

    threads = [threading.Thread(target=add, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    known = listed(fresh)
    assert len(known) == len(set(known)) == 100
    assert len(numbers) == 75
    assert all(known[number] == name for name, number in numbers.items())
    for who in range(3):
        each = [numbers[f"{who}-{number}"] for number in range(25)]
        assert each == sorted(each)


def test_never_removed(fresh: Path) -> None:
    """ "Channels cannot be removed for the lifetime of the bus instance." """
    with Raw(fresh) as client:
        [channel] = register(fresh, "A")
        client.publish(channel, b"x")
    fd = os.open(fresh / "channels", os.O_RDWR | os.O_TRUNC)  # as `echo name > channels` does
    os.close(fd)
    assert text(fresh) == b"A\n"
    for take_away in (
        lambda: os.truncate(fresh / "channels", 0),
        (fresh / "channels").unlink,
        (fresh / "fusebus").unlink,
        lambda: (fresh / "channels").rename(fresh / "other"),
        lambda: (fresh / "fusebus").rename(fresh / "channels"),
        lambda: (fresh / "new").write_text("x"),
        (fresh / "new").mkdir,
    ):
        try:
            take_away()
        except OSError:
            continue
        finally:
            assert text(fresh) == b"A\n"
            assert sorted(one.name for one in fresh.iterdir()) == ["channels", "fusebus"]
    assert register(fresh, "B") == [1]


def test_the_limit_is_1024(fresh: Path) -> None:
    """ "There is a practical but arbitrary limit on the number of channels the bus can accomodate. … currently set at 1024." """
    assert register(fresh, *(f"C{number}" for number in range(1024))) == list(range(1024))
    with refused(errno.ENOSPC):
        append(fresh, b"one too many\n")
    assert append(fresh, b"C17\n") == 4  # which is there
    assert len(listed(fresh)) == 1024
    with Raw(fresh) as client:
        client.subscribe("C1023")
        client.publish(1023, b"the last one")
        assert [message.data for message in client.wait(1)] == [b"the last one"]
        with refused(errno.EINVAL, errno.ENOENT, errno.ENXIO):
            client.publish(1024, b"x")


def test_the_limit_is_a_setting() -> None:
    """ "practical but arbitrary": it can be set, not only "at compile-time"."""
    with mounted("fusebus", "--channels", 3) as made:
        register(made.folder, "A", "B", "C")
        with refused(errno.ENOSPC):
            append(made.folder, b"D")
        assert text(made.folder) == b"A\nB\nC\n"


# What the document leaves open.


def test_readable_at_any_offset(fresh: Path) -> None:
    register(fresh, "FIRST", "SECOND")
    whole = b"FIRST\nSECOND\n"
    fd = os.open(fresh / "channels", os.O_RDONLY)
    for offset in range(len(whole) + 3):
        for size in (1, 4, 100):
            assert os.pread(fd, size, offset) == whole[offset : offset + size]
    assert [os.read(fd, 5), os.read(fd, 5), os.read(fd, 5), os.read(fd, 5)] == [b"FIRST", b"\nSECO", b"ND\n", b""]
    assert os.lseek(fd, 6, os.SEEK_SET) == 6
    assert os.read(fd, 100) == b"SECOND\n"
    register(fresh, "THIRD")
    assert os.read(fd, 100) == b"THIRD\n"  # as `tail -f` reads it
    os.close(fd)
    assert (fresh / "channels").stat().st_size == len(whole) + 6


def test_pollable(fresh: Path) -> None:
    """Whoever has read all of it is told when there is more."""
    register(fresh, "A")
    fd = os.open(fresh / "channels", os.O_RDONLY)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(60_000) == [(fd, select.POLLIN)]
    assert os.read(fd, 100) == b"A\n"
    assert poll.poll(0) == []
    later = Later(lambda: poll.poll(60_000))
    register(fresh, "A")  # nothing new
    assert not later.over()
    register(fresh, "B")
    assert later.result() == [(fd, select.POLLIN)]
    assert os.read(fd, 100) == b"B\n"
    assert poll.poll(0) == []
    os.close(fd)


@pytest.mark.parametrize("name", [b"a\0b", b"\0", b"\xff\xfe", b"a\tb", b"a\x7fb", b"a\rb", b"x" * 100_000])
def test_names_that_can_not_be(fresh: Path, name: bytes) -> None:
    append(fresh, b"GOOD\n")
    with refused(errno.EINVAL, errno.ENAMETOOLONG, errno.EMSGSIZE):
        append(fresh, name + b"\n")
    assert text(fresh) == b"GOOD\n"
    append(fresh, b"NEXT\n")
    assert text(fresh) == b"GOOD\nNEXT\n"


def test_a_newline_ends_a_name(fresh: Path) -> None:
    """A name has none inside: what is before and after it are two."""
    append(fresh, b"one\ntwo")
    assert text(fresh) == b"one\ntwo\n"


@pytest.mark.parametrize("data", [b"\n", b"\n\n\n"])
def test_an_empty_line_is_no_channel(fresh: Path, data: bytes) -> None:
    append(fresh, data)
    assert text(fresh) == b""
