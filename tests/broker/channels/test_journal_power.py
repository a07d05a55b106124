"""The power is cut at any moment under the channels' journal: what was acknowledged with `synced` is there again.

The journal works on real files, and notes are taken of what it asks of the system. A power cut keeps of each write that was not
synced all, nothing, its beginning or some sectors, and of names that were not synced only the first so many changes.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from busway.broker.channels import journal as journal_module
from busway.broker.channels.journal import Journal
from busway.broker.channels.state.progress import ChannelConfig, Created, Done, Entry, States

SECTOR = 64
"""Small, so that a write has several."""
ROUNDS = 150
LIVES = 6


class PowerCutError(BaseException):
    """Nothing works any more; no error of a disk, so that nobody handles it."""


@dataclass(eq=False)
class Node:
    safe: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Bytes written at a place, or (None) the file cut there."""


def changed(content: bytes, at: int, written: bytes | None) -> bytes:
    if written is None:
        return content[:at].ljust(at, b"\0")
    return content[:at].ljust(at, b"\0") + written + content[at + len(written) :]


class Disk:
    """What would be left of a folder's files."""

    def __init__(self, folder: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.chance = folder, chance
        self.names: dict[str, Node] = {}
        self.past: list[dict[str, Node]] = [{}]
        self.fds: dict[int, Node | None] = {}
        self.fuse = 0
        self.real: dict[str, Callable[..., Any]] = {"fstat": os.fstat}
        for name in ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "close", "replace", "unlink"):
            self.real[name] = getattr(os, name)
            monkeypatch.setattr(os, name, getattr(self, name))

    def _call(self, name: str, *given: Any, **more: Any) -> Any:
        self.fuse -= 1
        if self.fuse == 0:
            raise PowerCutError
        return self.real[name](*given, **more)

    def _renamed(self) -> None:
        self.past.append(dict(self.names))

    def open(self, path: Any, flags: int, *given: Any, **more: Any) -> int:
        place = Path(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else Path()
        if self.folder not in (place, place.parent):
            return int(self.real["open"](path, flags, *given, **more))
        fd = int(self._call("open", path, flags, *given, **more))
        if place == self.folder:
            self.fds[fd] = None
        elif flags & os.O_CREAT:
            if (node := self.names.get(place.name)) is None:
                node = self.names[place.name] = Node()
                self._renamed()
            elif flags & os.O_TRUNC:
                node.since.append((0, None))
            self.fds[fd] = node
        return fd

    def pwrite(self, fd: int, content: Any, at: int) -> int:
        node = self.fds[fd]
        assert node is not None
        # Before it is called: the power may go while it is written.
        node.since.append((at, bytes(content)))
        return int(self._call("pwrite", fd, content, at))

    def ftruncate(self, fd: int, size: int) -> None:
        node = self.fds[fd]
        assert node is not None
        node.since.append((size, None))
        self._call("ftruncate", fd, size)

    def fsync(self, fd: int) -> None:
        if fd not in self.fds:
            self.real["fsync"](fd)
            return
        self._call("fstat", fd)  # a real sync takes its time, and changes nothing here
        node = self.fds[fd]
        if node is None:
            self.past = [dict(self.names)]
            return
        for at, written in node.since:
            node.safe = changed(node.safe, at, written)
        node.since.clear()

    fdatasync = fsync

    def close(self, fd: int) -> None:
        self.fds.pop(fd, None)
        self.real["close"](fd)

    def replace(self, old: Any, new: Any, **more: Any) -> None:
        if Path(old).parent != self.folder:
            self.real["replace"](old, new, **more)
            return
        self._call("replace", old, new, **more)
        self.names[Path(new).name] = self.names.pop(Path(old).name)
        self._renamed()

    def unlink(self, path: Any, **more: Any) -> None:
        if Path(os.fsdecode(path)).parent == self.folder and self.names.pop(Path(os.fsdecode(path)).name, None):
            self._renamed()
        self.real["unlink"](path, **more)

    def power_cut(self) -> None:
        """Leave in the folder what the disk has by chance."""
        self.fuse = 0
        for fd in list(self.fds):
            self.close(fd)
        for file in self.folder.iterdir():
            self.real["unlink"](file)
        self.names = self.chance.choice(self.past)
        for name, node in self.names.items():
            for at, written in node.since:
                if written is None:
                    if self.chance.random() < 0.5:
                        node.safe = changed(node.safe, at, None)
                    continue
                for place, part in self._left(written):
                    node.safe = changed(node.safe, at + place, part)
            node.since.clear()
            (self.folder / name).write_bytes(node.safe)
        self.past = [dict(self.names)]

    def _left(self, written: bytes) -> list[tuple[int, bytes]]:
        match self.chance.randrange(4):
            case 0:
                return []
            case 1:
                return [(0, written)]
            case 2:
                return [(0, written[: self.chance.randrange(len(written) + 1)])]
            case _:
                parts = [(at, written[at : at + SECTOR]) for at in range(0, len(written), SECTOR)]
                return [part for part in parts if self.chance.random() < 0.6]


def done(states: States) -> dict[str, set[int]]:
    return {
        name: set(range(one.floor)) | {at for begin, end, _ in one.done for at in range(begin, end)}
        for name, one in states.items()
    }


class Life:
    """A journal that dies and comes back; what it was told, and what of that it has acknowledged."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.chance = disk, disk.chance
        self.told: dict[str, set[int]] = {}
        self.acknowledged: dict[str, set[int]] = {}

    def live(self) -> None:
        journal = Journal(self.disk.folder, "synced")
        self.disk.fuse = self.chance.randrange(1, 120)
        try:
            self.compare(done(journal.open()))
            for _ in range(self.chance.randrange(1, 40)):
                self.step(journal)
        except PowerCutError:
            pass
        finally:
            journal._executor.shutdown()
            self.disk.power_cut()

    def step(self, journal: Journal) -> None:
        entries: list[Entry] = []
        given: list[tuple[str, int]] = []
        for _ in range(self.chance.randrange(1, 8)):
            name = self.chance.choice("abc")
            if name not in self.told:
                self.told[name] = set()
                entries.append(Created(name, 1, 0, ChannelConfig()))
            offset = self.chance.randrange(200)
            entries.append(Done(name, 1, 0, ((offset, 1),)))
            given.append((name, offset))
            self.told[name].add(offset)
        if journal.append(entries) is None:
            for name, offset in given:
                self.acknowledged.setdefault(name, set()).add(offset)

    def compare(self, found: dict[str, set[int]]) -> None:
        """No acknowledged one is lost, none is made up."""
        for name, offsets in self.acknowledged.items():
            assert offsets <= found.get(name, set()), "an acknowledged entry is lost"
        for name, offsets in found.items():
            assert offsets <= self.told[name], "nobody has written this"
        # What was begun and is gone was never there; what is there now was read, and stays.
        self.told = {name: set(offsets) for name, offsets in found.items()}


@pytest.mark.parametrize("part", range(2))
def test_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(journal_module, "_WORTH", 1500)  # so that it is written anew now and then
    for seed in range(part * ROUNDS, (part + 1) * ROUNDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with monkeypatch.context() as patch:
            life = Life(Disk(folder, random.Random(seed), patch))
            try:
                for _ in range(LIVES):
                    life.live()
                journal = Journal(folder, "synced")
                life.compare(done(journal.open()))
                journal._executor.shutdown()
                journal.close()
            except BaseException:
                print(f"seed {seed}")
                raise
