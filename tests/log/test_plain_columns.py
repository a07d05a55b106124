"""Plain columns in one step: the rows and the holes that reading a block and looking at its records gives."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from busway._core import Log, Selection, block_records, matches
from busway.arrow import COLUMNS, plain_batch
from tests.support.stored import row, wait_safe
from tests.support.strength import examples

if TYPE_CHECKING:
    from busway._core import Row

COUNT = 600
BUCKET = 9000
PATTERNS = ["**", "price/eth", "price/*", "re:.*/(eth|é)", "nothing"]
SAME = {"stream": "prices"}
KINDS = {
    "stream": pa.string(),
    "offset": pa.int64(),
    "topic": pa.string(),
    "sequence": pa.int64(),
    "stored": pa.timestamp("us", tz="UTC"),
    "time": pa.timestamp("us", tz="UTC"),
    "id": pa.string(),
    "sender": pa.string(),
    "fields": pa.binary(),
    "payload": pa.binary(),
}


def messages() -> "Iterator[Row]":
    """Some have fields, some expire, some wait to be due, and one is longer than what is read at once."""
    chance = random.Random(5)
    for number in range(COUNT):
        yield row(
            f"price/{chance.choice(['eth', 'btc', 'é'])}",
            chance.randbytes(200_000 if number == 300 else chance.randrange(90)),
            fields=msgspec.msgpack.encode({"n": number}) if number % 3 else None,
            sender=chance.choice(["", "feed"]),
            session=1 + number % 2,
            number=number + 1,
            time=number * 777 - 100_000,
            expires=number % 7 * 10,
            due=10**9 if number % 11 == 5 else 0,
        )


def fill(log: Log) -> Log:
    for number, one in enumerate(messages()):
        assert log.append([one], 1000 + number)
        if number % 13 == 0:
            assert wait_safe(log) is None
    assert wait_safe(log) is None
    return log


def in_memory(_: Path) -> Log:
    return fill(Log.open(None, max_age=0, pending_bytes=1 << 30))


def written(folder: Path) -> Log:
    return fill(Log.open(folder, bucket_bytes=BUCKET, max_age=0))


def seen(folder: Path) -> Log:
    written(folder).close()
    return Log.view(folder)


def trimmed(folder: Path) -> Log:
    log = written(folder)
    log.set(max_count=350)
    assert log.trim(2000)[0]
    log.close()
    view = Log.view(folder)
    assert view.first > 0
    return view


def damaged(folder: Path) -> Log:
    """A bit of every other bucket has changed, one bucket is cut and one is gone."""
    written(folder).close()
    chance = random.Random(6)
    files = sorted(folder.glob("*.log"))
    for file in files[::2]:
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
    files[1].write_bytes(files[1].read_bytes()[:-200])
    files[-2].unlink()
    return Log.view(folder)


@pytest.fixture(scope="module", params=[in_memory, written, seen, trimmed, damaged], ids=lambda one: one.__name__)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Log:
    make: Callable[[Path], Log] = request.param
    return make(tmp_path_factory.mktemp("log"))


Walked = tuple[list[dict[str, Any]], list[tuple[int, int]]]


def by_blocks(log: Log, begin: int, end: int, most: int, pattern: str, now: int) -> Walked:
    """Rows, and the offsets that are gone."""
    rows: list[dict[str, Any]] = []
    holes: list[tuple[int, int]] = []
    at = begin
    while at < min(end, log.safe):
        first, following, block = log.read(at, most)
        if first > at:
            holes.append((at, min(first, end)))
        for r in block_records(block):
            asked = r[0] < end and r[1] and not 0 < r[10] <= now and matches(pattern, r[3])
            rows += [
                {
                    "stream": "prices", "offset": r[0], "topic": r[3], "sequence": r[1], "stored": int(r[2] / 1000), "time": int(r[9] / 1000),
                    "id": f"{r[7]:016x}{r[8]:016x}", "sender": r[6], "fields": r[5] or b"", "payload": r[4],
                }
            ] if asked else []  # fmt: skip
        at = following
    return rows, holes


def in_one_step(log: Log, begin: int, end: int, most: int, pattern: str, now: int, columns: tuple[str, ...]) -> Walked:
    selection = None if pattern == "**" else Selection(pattern, b"")
    rows: list[dict[str, Any]] = []
    holes: list[tuple[int, int]] = []
    at = begin
    while at < min(end, log.safe):
        first, following, batch = plain_batch(log, at, end, most, columns, selection=selection, now=now, same=SAME)
        batch.validate(full=True)
        assert batch.schema == pa.schema([(name, KINDS[name]) for name in columns])
        if first > at:
            holes.append((at, min(first, end)))
        assert following > at
        times = [array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array for array in batch.columns]
        rows += pa.RecordBatch.from_arrays(times, list(columns)).to_pylist()
        at = following
    return rows, holes


def joined(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Holes that touch are one."""
    found: list[tuple[int, int]] = []
    for begin, end in holes:
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


@given(
    begin=st.integers(0, COUNT + 60),
    length=st.one_of(st.just(1 << 40), st.integers(0, COUNT)),
    most=st.one_of(st.just(1 << 20), st.integers(1, 30_000)),
    pattern=st.sampled_from(PATTERNS),
    now=st.sampled_from([0, 20, 100]),
    columns=st.lists(st.sampled_from(["stream", *COLUMNS]), min_size=1, unique=True).map(tuple),
)
@settings(max_examples=examples(25))
def test_it_agrees_with_blocks(
    log: Log, begin: int, length: int, most: int, pattern: str, now: int, columns: tuple[str, ...]
) -> None:
    end = begin + length
    wanted, holes = by_blocks(log, begin, end, most, pattern, now)
    found, own = in_one_step(log, begin, end, most, pattern, now, columns)
    assert found == [{name: one[name] for name in columns} for one in wanted]
    assert joined(own) == joined(holes)


def test_what_has_changed_is_not_given(tmp_path: Path) -> None:
    """A payload of which one bit is another one still has the right lengths: only its checksum tells."""
    written(tmp_path).close()
    known = [r for r in messages() if not r[-1]]
    file = sorted(tmp_path.glob("*.log"))[1]
    content = file.read_bytes()
    begin = int(file.stem)
    place = content.index(next(known_[1] for known_ in list(messages())[begin + 1 :] if len(known_[1]) > 20))
    file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    rows, holes = in_one_step(Log.view(tmp_path), 0, 1 << 40, 1 << 20, "**", 0, ("payload",))
    assert len(holes) == 1
    assert holes[0][1] - holes[0][0] == 1
    lost = list(messages())[holes[0][0]]
    left = [r[1] for r in known if r != lost]
    assert [one["payload"] for one in rows] == left


def test_what_can_not_be_asked_for(tmp_path: Path) -> None:
    log = seen(tmp_path)
    with pytest.raises(ValueError, match="columns are offset, topic"):
        plain_batch(log, 0, 10, 1000, ["colour"])
    first, following, batch = plain_batch(log, 10**6, 2 * 10**6, 1000, ["topic"])
    assert (first, following, batch.num_rows) == (log.safe, log.safe, 0)
    assert plain_batch(log, 5, 5, 1000, ["topic"])[2].num_rows == 0
