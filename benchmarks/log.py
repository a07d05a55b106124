"""Measures the stored log of the engine alone: python -m benchmarks.log [--count N] [--open GIB] [--folder DIR].

Appending takes blocks that are ready (64 KiB each, 128-byte payload, one publisher), as the engine does with what it
is fed; each block is flushed, and the time ends when all of it is as safe as was asked for.
"""

import argparse
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from busway._core import Log
from busway.arrow import COLUMNS, record_batch

PAYLOAD = bytes(range(128))
BLOCK = 64 << 10


def wait(log: Log) -> None:
    """Until the writer has done something."""
    fd = log.fileno()
    if fd is not None:
        select.select([fd], [], [])
    if lost := log.remove_unwritten():
        raise SystemExit(f"the disk took no more: {lost[2]}")


def prepared(count: int) -> list[tuple[int, bytes]]:
    """Blocks with how many messages each has."""
    log = Log.open(None, max_age=0, pending_bytes=1 << 40)
    for begin in range(0, count, 1000):
        numbers = range(begin + 1, min(begin + 1000, count) + 1)
        log.append([("price/eth/eur", PAYLOAD, None, "feed", 7, number, 1, 0, 0) for number in numbers], 1)
        log.flush()
    blocks, at = [], 0
    while at < count:
        _, then, block = log.read(at, BLOCK)
        blocks.append((then - at, block))
        at = then
    return blocks


def append(log: Log, blocks: list[tuple[int, bytes]], now: int = 1) -> None:
    for size, block in blocks:
        done = log.append_block(block, now)
        log.flush()
        while done < size:
            wait(log)
            done += log.append_block(block, now, done)
            log.flush()
    while log.safe < log.next:
        wait(log)


def read(log: Log, columns: tuple[str, ...] | None = None) -> int:
    at = rows = 0
    while True:
        first, then, block = log.read(at, 1 << 20)
        if not block:
            return rows
        rows += then - first if columns is None else record_batch(block, columns).num_rows
        at = then


def rates(count: int, folder: Path | None = None) -> dict[str, float]:
    """Records a second: appended to a log on disk until they are written, read to Arrow with all columns, and the payload alone."""
    blocks = prepared(count)
    record_batch(blocks[0][1])
    with tempfile.TemporaryDirectory(prefix="busway-log-", dir=folder) as place:
        log = Log.open(Path(place) / "log", safety="written", max_age=0)
        works: dict[str, Callable[[], object]] = {
            "append": lambda: append(log, blocks),
            "arrow": lambda: read(log, COLUMNS),
            "payload": lambda: read(log, ("payload",)),
        }
        found = {}
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            found[name] = count / (time.perf_counter() - begin)
        log.close()
    return found


@contextmanager
def timed(name: str, count: int) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:44} {count / wall / 1e6:8.2f} {cpu / count * 1e6:8.2f}")


def open_time(folder: Path, blocks: list[tuple[int, bytes]], gib: float) -> None:
    """How long a long stream takes to open, closed before and not."""
    log = Log.open(folder / "long", max_age=0, pending_bytes=64 << 20)
    while log.usage[0] < gib * (1 << 30):
        # Without sessions, since they would be known.
        append(log, blocks)
    size, buckets, _ = log.usage
    log.close()
    for name in ("after a close", "after a crash"):
        begin = time.perf_counter()
        log = Log.open(folder / "long", max_age=0)
        took = time.perf_counter() - begin
        print(f"open {size / (1 << 30):.1f} GiB in {buckets} buckets {name}: {took * 1e3:.1f} ms")
        log.close()
        # What a crash leaves: no index of the last bucket.
        max((folder / "long").glob("*.idx")).unlink()


def anonymous(blocks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The same blocks without a publisher's session."""
    log = Log.open(None, max_age=0, pending_bytes=1 << 40)
    for size, _ in blocks:
        log.append([("price/eth/eur", PAYLOAD, None, "feed", 0, 0, 1, 0, 0)] * size, 1)
    log.flush()
    found, at = [], 0
    while at < log.next:
        _, then, block = log.read(at, BLOCK)
        found.append((then - at, block))
        at = then
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--open", type=float, default=0, help="GiB of a stream whose opening is measured")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="busway-log-", dir=given.folder))
    blocks = prepared(given.count)
    record_batch(blocks[0][1])
    print(f"{'':44} {'M/s':>8} {'CPU s/M':>8}")
    try:
        safeties: tuple[Literal["memory", "written", "synced"], ...] = ("memory", "written", "synced")
        with timed("append, store in memory", given.count):
            append(Log.open(None, max_age=0), blocks)
        for safety in safeties:
            log = Log.open(folder / safety, safety=safety, max_age=0)
            with timed(f"append, store on disk, {safety}", given.count):
                append(log, blocks)
        with timed("read", given.count):
            read(log)
        for columns in (COLUMNS, ("offset", "topic", "time", "payload"), ("payload",)):
            with timed(f"read to Arrow, {len(columns)} columns", given.count):
                read(log, columns)
        if given.open:
            open_time(folder, anonymous(blocks), given.open)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
