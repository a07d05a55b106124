"""Damaged files of a log: each damage is found and reported, and all other records can be read."""

import random
import shutil
from pathlib import Path

import pytest

from busway import errors
from busway._core import Log, Selection
from tests.support.stored import Stored, last_sequences, lost, read_all, row, wait_safe

FLIPS = 1000
COUNT = 400


def fill(folder: Path, *, close: bool = True, count: int = COUNT, **settings: int) -> list[Stored]:
    """A log of many buckets, written in many groups."""
    chance = random.Random(4)
    log = Log.open(folder, bucket_bytes=8000, max_age=0, **settings)
    for number in range(count):
        payload = chance.randbytes(chance.randrange(150))
        given = row(
            f"t/{chance.randrange(5)}", payload, session=1 + number % 3, number=number, fields=b"\x80", sender="me"
        )
        assert log.append([given], 1000 + number)
        if chance.randrange(4) == 0:
            assert wait_safe(log) is None
    assert wait_safe(log) is None
    records = read_all(log)
    assert len(records) == count
    if close:
        log.close()
    return records


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stored]]:
    folder = tmp_path_factory.mktemp("sound")
    return folder, fill(folder)


def examine(folder: Path, records: list[Stored]) -> tuple[set[int], list[tuple[str, int, int, int | None, str]]]:
    """What is lost; all that is there is right, all that isn't is told, and the log goes on behind it."""
    log = Log.open(folder, bucket_bytes=8000, max_age=0)
    found = read_all(log)
    log.check()
    damage = log.damage
    there = {known.offset for known in found}
    gone = {known.offset for known in records} - there
    by_offset = {known.offset: known for known in records}
    assert all(by_offset[known.offset] == known for known in found)
    told = lost(damage)
    torn = [begin for _, _, begin, end, _ in damage if end is None]
    assert all(offset in told or any(offset >= begin for begin in torn) for offset in gone), (gone, damage)
    assert not told & there, (told, damage)
    sequences = last_sequences(log)
    [(offset, sequence)] = log.append([row("t/0", b"on")], 5000)
    assert wait_safe(log) is None
    assert offset > max(there, default=-1)
    assert sequence == sequences.get("t/0", 0) + 1 > max((k.sequence for k in found if k.topic == "t/0"), default=0)
    assert read_all(log)[-1].payload == b"on"
    # A publisher that is known is still known, unless what it sent is lost.
    if found:
        known = random.Random(1).choice(found)
        again = row(known.topic, known.payload, session=known.session, number=known.number)
        assert log.append([again], 5000) == [(known.offset, known.sequence)]
    log.close()
    return gone, damage


@pytest.mark.parametrize("part", range(4))
def test_bit_flips(sound: tuple[Path, list[Stored]], tmp_path: Path, part: int) -> None:
    folder, records = sound
    files = sorted(file.name for file in folder.iterdir() if file.stat().st_size)
    sizes = [(folder / name).stat().st_size for name in files]
    chance = random.Random(part)
    for flip in range(FLIPS // 4):
        copy = tmp_path / str(flip)
        shutil.copytree(folder, copy)
        [name] = chance.choices(files, sizes)
        data = bytearray((copy / name).read_bytes())
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        (copy / name).write_bytes(data)
        try:
            gone, damage = examine(copy, records)
            assert any(file == name for file, *_ in damage), damage
            assert len(gone) <= (1 if name.endswith(".log") else 0), (gone, damage)
        except BaseException:
            print(f"flip {flip}: {name} at {at} of {len(data)}")
            raise
        shutil.rmtree(copy)


def test_bit_flips_after_a_crash(tmp_path: Path) -> None:
    """Nothing was sealed in the last bucket, so it is read: what a later write shows to have been safe stays."""
    folder = tmp_path / "crashed"
    records = fill(folder, close=False, count=100)
    last = max(folder.glob("*.log"))
    chance = random.Random(2)
    for flip in range(200):
        copy = tmp_path / str(flip)
        shutil.copytree(folder, copy)
        data = bytearray((copy / last.name).read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (copy / last.name).write_bytes(data)
        gone, damage = examine(copy, records)
        assert any(file == last.name for file, *_ in damage)
        # Of the last write nobody knows whether it was complete.
        assert len(gone) <= 1 or damage[0][4] == "a torn tail"
        assert len(gone) <= 20
        shutil.rmtree(copy)


@pytest.mark.parametrize("end", [".log", ".idx", ""])
@pytest.mark.parametrize("which", [0, 1, -2, -1])
def test_a_missing_file(sound: tuple[Path, list[Stored]], tmp_path: Path, end: str, which: int) -> None:
    folder, records = sound
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    logs = sorted(tmp_path.glob("*.log"))
    begin = int(logs[which].stem)
    until = int(logs[which + 1].stem) if which not in (-1, len(logs)) else len(records)
    for file in tmp_path.glob(f"{logs[which].stem}{end or '.*'}"):
        file.unlink()
    gone, damage = examine(tmp_path, records)
    assert gone == (set() if end == ".idx" else set(range(begin, until)))
    # Of the last bucket the index is only a help.
    assert damage or (end, which) == (".idx", -1)


@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_truncated_bucket(sound: tuple[Path, list[Stored]], tmp_path: Path, which: int) -> None:
    folder, records = sound
    chance = random.Random(which)
    for number in range(40):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        log = sorted(copy.glob("*.log"))[which]
        size = chance.randrange(log.stat().st_size)
        with log.open("r+b") as file:
            file.truncate(size)
        gone, damage = examine(copy, records)
        assert gone
        assert any(name == log.name for name, *_ in damage)
        assert sorted(gone) == list(range(min(gone), max(gone) + 1))


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    records = fill(tmp_path / "log", count=20)
    log = max((tmp_path / "log").glob("*.log"))
    whole = log.read_bytes()
    for file in (tmp_path / "log").glob("*.idx"):
        file.unlink()
    for extra in (b"\0", b"\0" * 100, b"\xff" * 300, whole[-100:], whole[:79]):
        log.write_bytes(whole + extra)
        again = Log.open(tmp_path / "log")
        assert read_all(again) == records
        assert [what for *_, what in again.damage] == ["a torn tail"]
        again.close()
        for file in (tmp_path / "log").glob("*.idx"):
            file.unlink()
    assert log.read_bytes() == whole


def test_damage_while_open(tmp_path: Path) -> None:
    """It is found when it is read, and reading goes on behind it."""
    fill(tmp_path, count=200)
    log = Log.open(tmp_path, bucket_bytes=8000)
    name = sorted(tmp_path.glob("*.log"))[1]
    data = bytearray(name.read_bytes())
    data[len(data) // 2] ^= 4
    name.write_bytes(data)
    found = read_all(log, most=1)
    assert len(found) == 199
    [(file, _, begin, end, _)] = log.damage
    assert (file, end) == (name.name, begin + 1)
    assert log.read(begin, 1)[0] == begin + 1


def test_garbage(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(random.Random(1).randbytes(50_000))
    (tmp_path / f"{0:020}.idx").write_bytes(random.Random(2).randbytes(500))
    (tmp_path / f"{700:020}.log").write_bytes(random.Random(3).randbytes(50_000))
    (tmp_path / "first").write_bytes(b"nothing")
    (tmp_path / "notes.txt").write_text("not ours")
    log = Log.open(tmp_path)
    assert read_all(log) == []
    assert {file for file, *_ in log.damage} >= {"first", f"{0:020}.log", f"{0:020}.idx", f"{700:020}.log"}
    assert log.append([row()], 1)[0][0] >= 700
    assert wait_safe(log) is None
    assert len(read_all(log)) == 1


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    first = Log.open(tmp_path)
    with pytest.raises(errors.DataFailed, match="in use"):
        Log.open(tmp_path)
    first.close()
    Log.open(tmp_path).close()


def test_a_folder_that_cant_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "log", Path("/proc/busway")):
        with pytest.raises(errors.DataFailed, match="can't be opened"):
            Log.open(folder)


def test_a_last_bucket_that_is_gone_with_its_index(tmp_path: Path) -> None:
    """Also then no offset is given again."""
    fill(tmp_path)
    last = max(tmp_path.glob("*.log"))
    begin = int(last.stem)
    last.unlink()
    last.with_suffix(".idx").unlink()
    for whole in tmp_path.glob("*.all"):
        whole.unlink()
    log = Log.open(tmp_path, bucket_bytes=8000, max_age=0)
    assert (log.next, log.safe) == (COUNT, COUNT)
    assert lost(log.damage) == set(range(begin, COUNT))
    assert len(read_all(log)) == begin
    assert log.append([row("t/0", b"on", session=9, number=1)], 9000)[0][0] == COUNT
    assert wait_safe(log) is None
    assert read_all(log)[-1].offset == COUNT
    log.set(max_count=1)
    log.append([row("t/0", bytes(3000))] * 8, 9000)
    assert wait_safe(log) is None
    log.trim(9000)
    assert log.first >= COUNT, "what was there goes in its time"
    log.close()


def test_nothing_that_is_lost_is_skipped(sound: tuple[Path, list[Stored]], tmp_path: Path) -> None:
    """Nobody knows whether it was of the topics that somebody looks for; who reads from there is told."""
    shutil.copytree(sound[0], tmp_path / "log")
    bases = sorted(int(file.stem) for file in (tmp_path / "log").glob("*.log"))
    for end in (".log", ".idx"):
        (tmp_path / "log" / f"{bases[3]:020}{end}").unlink()
    bad = tmp_path / "log" / f"{bases[5]:020}.log"
    bad.write_bytes(bytes(500) + bad.read_bytes()[500:])
    bad.with_suffix(".idx").unlink()
    log = Log.open(tmp_path / "log", bucket_bytes=8000, max_age=0)
    nothing = Selection("never/published", b"")
    assert log.skip(0, nothing) == bases[3]
    assert log.read(bases[3], 1)[0] == bases[4]
    assert log.skip(bases[4], nothing) == bases[5]
    assert log.read(bases[5], 1)[0] > bases[5]
    assert log.skip(bases[6], nothing) == bases[-1], "the one that is written to has no index yet"
    log.close()
