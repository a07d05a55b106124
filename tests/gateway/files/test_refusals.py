"""Operations that a mount refuses have no effect and return an error; each in a real mount."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import busway
import busway.sync
from tests.support.commands import plain
from tests.support.fusebus_client import refused, register
from tests.support.mounts import PATIENCE, until


@pytest.fixture
def folder(mount, tmp_path: Path) -> Path:
    """A mount with a bus of its own."""
    return mount("--unix", tmp_path / "bus").folder


@pytest.fixture
def bus(folder: Path, tmp_path: Path):
    """Somebody on that bus."""
    with busway.sync.connect(f"unix:{tmp_path}/bus", name="native") as made:
        yield made


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


# Names.


def test_a_channel_whose_name_is_too_long_to_be_listed(folder: Path) -> None:
    register(folder, "x" * 300, "short", "y" * 300 + "/in it", "folder/" + "z" * 300)
    for top in ("topics", "json"):
        assert names_in(folder / top) == ["folder", "short"]
        assert names_in(folder / top / "folder") == []
    listed = subprocess.run(["find", "."], check=True, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert "./topics/short" in listed.stdout.split("\n")
    (folder / "topics" / ("x" * 300)).write_text("it can be written\n")
    assert (folder / "topics" / ("x" * 300)).read_text() == "it can be written\n"


def test_the_file_of_a_topic_beside_a_folder_of_its_name(folder: Path) -> None:
    topics = folder / "topics"
    (topics / "quote").mkdir()
    (topics / "%71uote").write_text("hi\n")
    assert names_in(topics) == ["%71uote", "quote"]
    with refused(errno.ENOTDIR):
        (topics / "%71uote").rmdir()
    with refused(errno.EISDIR):
        (topics / "quote").unlink()
    os.setxattr(topics / "%71uote", "user.busway.field.venue", b"krk")
    (topics / "quote").rmdir()
    assert os.getxattr(topics / "quote", "user.busway.field.venue") == b"krk"
    assert names_in(topics) == ["quote"]
    (topics / "quote").unlink()
    assert names_in(topics) == []


def test_a_folder_stays_when_the_file_of_its_topic_is_removed(folder: Path) -> None:
    topics = folder / "topics"
    (topics / "quote").mkdir()
    (topics / "%71uote").write_text("hi\n")
    (topics / "%71uote").unlink()
    assert names_in(topics) == ["quote"]
    with refused(errno.ENOENT):
        (topics / "%71uote").unlink()
    (topics / "quote").rmdir()
    assert names_in(topics) == []


# Writes.


def test_a_write_of_json_is_published_as_a_whole_or_not_at_all(folder: Path, bus: busway.sync.Bus) -> None:
    path = folder / "json" / "t"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with bus.subscribe("t") as messages:
        os.write(fd, b'{"payload":')
        with refused(errno.EINVAL):
            os.write(fd, b'"ok"}\nbroken\n{"payload":"tail"}')
        os.write(fd, b'\n{"payload":"good"}\n')
        os.close(fd)
        assert messages.recv(PATIENCE).text == "good"
        path.write_text('{"payload":"last"}\n')
        assert messages.recv(PATIENCE).text == "last"
    assert os.getxattr(path, "user.busway.refused") == b"3"


def test_a_last_line_that_is_no_json_is_told_by_close(folder: Path) -> None:
    path = folder / "json" / "t"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"broken")
    with refused(errno.EINVAL):
        os.close(fd)
    assert os.getxattr(path, "user.busway.refused") == b"1"


# Attributes.


def test_an_attribute_that_has_to_be_new_or_there(folder: Path) -> None:
    path, name = folder / "topics" / "t", "user.busway.field.venue"
    path.touch()
    with refused(errno.ENODATA):
        os.setxattr(path, name, b"a", os.XATTR_REPLACE)
    os.setxattr(path, name, b"a", os.XATTR_CREATE)
    with refused(errno.EEXIST):
        os.setxattr(path, name, b"b", os.XATTR_CREATE)
    assert os.getxattr(path, name) == b"a"
    os.setxattr(path, name, b"c", os.XATTR_REPLACE)
    assert os.getxattr(path, name) == b"c"


def test_an_attribute_that_is_no_text(folder: Path, bus: busway.sync.Bus) -> None:
    path = folder / "topics" / "t"
    path.touch()
    os.setxattr(path, "user.busway.field.raw", b"\xff\xfe")
    assert os.getxattr(path, "user.busway.field.raw") == b"\xff\xfe"
    with bus.subscribe("t") as messages:
        path.write_text("x\n")
        assert messages.recv(PATIENCE).fields == {"raw": b"\xff\xfe"}
    assert os.getxattr(path, "user.busway.last.field.raw") == b"\xff\xfe"


def test_every_attribute_is_on_the_page(folder: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "files.md").read_text()
    _, _, table = page.partition("| of | `user.busway.` | |\n")
    told: dict[str, set[str]] = {}
    whose = ""
    for row in table.partition("\n\n")[0].splitlines()[1:]:
        _, of, names, meaning, _ = row.split("|")
        whose = of.strip() or whose
        told.setdefault(whose, set()).update(re.findall(r"`([a-z_]+)`", names + meaning.partition(";")[2]))
    register(folder, "A")
    (folder / "topics" / "t").write_text("1\n")
    for whose, path in [
        ("`topics/…`, `json/…`", folder / "topics" / "t"),
        ("`channels`", folder / "channels"),
        ("`fusebus`", folder / "fusebus"),
        ("the mount", folder),
    ]:
        found = {name.removeprefix("user.busway.") for name in os.listxattr(path)}
        assert {name for name in found if "." not in name} == told[whose]


# Opening.


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC])
def test_the_readme_is_not_opened_for_writing(folder: Path, flags: int) -> None:
    """By root neither, to whom permissions are nothing."""
    with refused(errno.EACCES):
        os.close(os.open(folder / "README", flags))


def test_who_can_not_subscribe_does_not_wait_for_messages(folder: Path) -> None:
    fd = os.open(folder / "fusebus", os.O_RDONLY)
    try:
        with refused(errno.EAGAIN):
            os.read(fd, 4096)
    finally:
        os.close(fd)


def test_a_mount_can_be_copied(folder: Path, tmp_path: Path) -> None:
    """`fusebus` has nothing for who only reads it, which is told; everything else comes along."""
    (folder / "topics" / "t").write_text("1\n")
    done = subprocess.run(
        ["cp", "-r", ".", tmp_path / "copy"], check=False, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert [line.count("fusebus") for line in done.stderr.splitlines()] == [1]
    assert (tmp_path / "copy" / "topics" / "t").read_text() == "1\n"


# The command.


def test_the_hints_of_a_mount_work_in_their_order(mount) -> None:
    made = mount()
    until(lambda: "Ctrl-C" in made.notes, "the hints are printed")
    hints = dict(re.findall(r"^(read|watch|publish) +(.+)$", made.notes, re.MULTILINE))
    assert "A Busway message bus" in bash(hints["read"])
    with subprocess.Popen(
        ["bash", "-c", f"exec 2>&1; {hints['watch']}"], stdout=subprocess.PIPE, start_new_session=True
    ) as watch:
        try:
            until((made.folder / "topics" / "hello").exists, "the topic is watched")
            bash(hints["publish"])
            assert watch.stdout.readline() == b"Hello\n"
        finally:
            os.killpg(watch.pid, signal.SIGTERM)


def test_the_first_commands_of_the_readme_work(folder: Path) -> None:
    first, second = re.findall(r"^ {18}(.*)$", (folder / "README").read_text(), re.MULTILINE)[:2]
    assert "tail -f" in first
    assert (
        bash(
            f"cd {folder}; ({first.removesuffix('&').replace('tail', 'timeout 60 tail')} | head -n 1) 2>&1 & "
            f"until [ -e {folder}/topics/price ]; do :; done; {second}; wait"
        )
        == "3012.5\n"
    )


def bash(script: str) -> str:
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout


def test_the_variable_is_named_when_it_is_in_the_way(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "busway", "mount", str(tmp_path), "--unix", str(tmp_path / "bus")]
    for words, environment, told in [
        ([], {"BUSWAY_URL": "tcp://127.0.0.1:1"}, "BUSWAY_URL"),
        (["--url", "tcp://127.0.0.1:1"], {}, "--url"),
    ]:
        done = subprocess.run(
            [*command, *words], check=False, capture_output=True, text=True, env=plain() | environment, timeout=PATIENCE
        )
        assert done.returncode == 2
        assert f"{told} names one that runs" in re.sub(r"[\s│]+", " ", done.stderr)


def test_the_log_of_a_mount_in_the_background(tmp_path: Path) -> None:
    """What it has to tell is in the file."""
    place, log = tmp_path / "mount", tmp_path / "log"
    place.mkdir()
    command = [sys.executable, "-m", "busway", "mount", str(place), "--background", "--kept", "100", "--log", str(log)]
    subprocess.run(command, check=True, capture_output=True, env=plain(), timeout=PATIENCE)
    try:
        path = place / "topics" / "slow"
        path.write_text("first\n")
        with path.open("rb", buffering=0) as file:
            file.read(3)
            for start in range(0, 100, 50):
                path.write_text("".join(f"line {number}\n" for number in range(start, start + 50)))
                file.read(3)
        told = [line for line in log.read_text().splitlines() if "slow" in line]
        assert len(told) == 1
        assert "WARNING" in told[0]
    finally:
        subprocess.run(["fusermount3", "-u", str(place)], check=True, timeout=PATIENCE)


def test_a_log_that_can_not_be_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "busway", "mount", str(tmp_path), "--log", str(tmp_path / "no" / "log")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain(), timeout=PATIENCE)
    assert done.returncode == 2
    assert "can't be written (No such file" in re.sub(r"[\s│]+", " ", done.stderr)
    assert "Traceback" not in done.stderr
