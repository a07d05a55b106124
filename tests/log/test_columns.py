"""Blocks as Arrow: the same as the records they are made of."""

import random
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

from busway import _core
from busway._core import Log, block_records
from busway.arrow import COLUMNS, record_batch
from busway.fields import compile_where
from tests.support.stored import row


@pytest.fixture(scope="module")
def blocks() -> list[bytes]:
    chance = random.Random(3)
    log = Log.open(None, max_age=0, pending_bytes=1 << 30)
    for number in range(3000):
        fields = msgspec.msgpack.encode({"venue": chance.choice(["krk", "bin"]), "n": number}) if number % 3 else None
        given = row(
            f"price/{chance.choice(['eth', 'btc', 'é'])}", chance.randbytes(chance.randrange(60)), fields=fields,
            sender=chance.choice(["", "feed"]), session=chance.getrandbits(64), number=number, time=number * 1000, expires=number % 7 * 10,
        )  # fmt: skip
        assert log.append([given], 10**18 + number)
    log.flush()
    found, begin = [], 0
    while begin < log.next:
        _, begin, block = log.read(begin, 50_000)
        found.append(block)
    assert len(found) > 3
    return found


def expected(blocks: list[bytes]) -> list[dict[str, object]]:
    def time(ns: int) -> int:
        return ns

    return [
        {
            "offset": r[0], "topic": r[3], "sequence": r[1], "stored": time(r[2]), "time": time(r[9]), "id": f"{r[7]:016x}{r[8]:016x}",
            "sender": r[6], "fields": r[5] or b"", "payload": r[4], "expires": r[10],
        }
        for block in blocks for r in block_records(block)
    ]  # fmt: skip


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    kinds = {"stored": pa.int64(), "time": pa.int64(), "topic": pa.string(), "sender": pa.string()}
    arrays = [
        array.cast(kinds[name]) if name in kinds else array
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names).to_pylist()


def same(batch: pa.RecordBatch, wanted: list[dict[str, object]], columns: tuple[str, ...] = COLUMNS) -> None:
    batch.validate(full=True)
    assert batch.schema.names == list(columns)
    assert rows(batch) == [{name: record[name] for name in columns} for record in wanted]


def test_all_columns(blocks: list[bytes]) -> None:
    batch = record_batch(blocks)
    same(batch, expected(blocks))
    assert batch.schema.field("topic").type == pa.dictionary(pa.int32(), pa.string())
    assert batch.schema.field("stored").type == pa.timestamp("ns", tz="UTC")
    assert batch["time"][1].as_py() == datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    same(record_batch(blocks[0]), expected(blocks[:1]))
    same(record_batch([]), [])


@pytest.mark.parametrize("columns", [(), ("payload",), ("topic", "offset"), ("sender", "id", "fields")])
def test_some_columns(blocks: list[bytes], columns: tuple[str, ...]) -> None:
    same(record_batch(blocks, columns), expected(blocks) if columns else [], columns)


def test_a_range_and_what_has_expired(blocks: list[bytes]) -> None:
    all_rows = expected(blocks)
    same(record_batch(blocks, begin=17, end=170), all_rows[17:170])
    same(record_batch(blocks, begin=5000), [])
    same(record_batch(blocks, now=20), [known for known in all_rows if known["expires"] in (0, 30, 40, 50, 60)])


@pytest.mark.parametrize("pattern", ["price/*", "price/eth", "re:price/(eth|é)", "nothing"])
@pytest.mark.parametrize("where", [{}, {"venue": "krk"}, {"n": [*range(1, 100), 700]}])
def test_a_selection(blocks: list[bytes], pattern: str, where: dict[str, object]) -> None:
    selection = _core.Selection(pattern, compile_where(where).wire)
    wanted = [
        known for known in expected(blocks)
        if _core.matches(pattern, str(known["topic"]))
        and (not where or selection.matches(str(known["topic"]), known["fields"], known["payload"]))
    ]  # fmt: skip
    assert wanted or pattern == "nothing"
    same(record_batch(blocks, selection=selection), wanted)


def test_what_is_no_block(blocks: list[bytes]) -> None:
    for bad in (blocks[0][:-1], blocks[0][1:], b"\0", b"\0" * 100):
        with pytest.raises(ValueError, match="whole records"):
            record_batch(bad)
        with pytest.raises(ValueError, match="whole records"):
            block_records(bad)
    with pytest.raises(ValueError, match="columns are"):
        record_batch(blocks, ["colour"])
