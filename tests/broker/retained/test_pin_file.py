"""The file of pins: answered pins survive a restart, damage is skipped and reported, and disk errors never end the
broker.
"""

import asyncio
import errno
import logging
import os
import random
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway import DataFailed
from busway.broker.flags import PIN
from busway.broker.retained.pin_file import MAGIC, Entry, Pin, PinJournal, Unpin, pin_journal
from busway.broker.storage.data_folder import DataFolder
from busway.broker.storage.record_format import Damage, Found
from tests.support.net import within
from tests.support.strength import examples

encode, scan = pin_journal(Path()).encode, pin_journal(Path()).scan


def pin(number: int = 1, topic: str = "t", payload: bytes = b"x", name: str = "n", fields: bytes = b"") -> Pin:
    return Pin(7, number, name, topic, PIN, 1_700, fields, payload)


async def store(pins: PinJournal, *entries: Entry) -> list[OSError | None]:
    results: list[OSError | None] = []
    done = asyncio.Event()

    def told(result: OSError | None) -> None:
        results.append(result)
        if len(results) == len(entries):
            done.set()

    for entry in entries:
        pins.store(entry, told)
    await within(done.wait())
    return results


async def content(folder: Path) -> list[Entry]:
    """What a start finds."""
    pins = pin_journal(folder)
    found = await within(pins.start())
    await within(pins.stop())
    return found


class TestFormat:
    @given(
        st.lists(
            st.one_of(
                st.builds(
                    Pin,
                    session=st.integers(1, 2**64 - 1),
                    number=st.integers(0, 2**64 - 1),
                    name=st.text(max_size=5),
                    topic=st.text(max_size=5),
                    flags=st.just(PIN),
                    time=st.integers(-(2**63), 2**63 - 1),
                    fields=st.sampled_from([b"", b"\x81\xa1a\x01"]),
                    payload=st.one_of(st.binary(max_size=50), st.sampled_from([MAGIC * 3, MAGIC[:2], b"\xc1B\x00W"])),
                ),
                st.builds(Unpin, name=st.text(max_size=5), topic=st.text(max_size=5), fields=st.just(b"")),
            ),
            max_size=6,
        )
    )
    @settings(max_examples=examples(500), deadline=None)
    def test_what_is_written_is_read(self, entries) -> None:
        found = list(scan(b"".join(map(encode, entries))))
        assert [one.entry for one in found] == entries

    def test_a_payload_is_never_taken_for_a_record(self) -> None:
        """A pin whose payload holds whole records, in a file whose first bytes are damaged."""
        inner = encode(pin(name="somebody else", payload=b"forged"))
        data = bytearray(encode(pin(payload=inner * 10)) + encode(pin(2)))
        data[0] ^= 1
        damage, good = scan(bytes(data))
        assert isinstance(damage, Damage)
        assert isinstance(good, Found)
        assert good.entry == pin(2)

    def test_looking_for_the_next_record_takes_one_pass(self) -> None:
        """A hostile payload, full of beginnings of records that claim to be long."""
        fake = struct.pack("<4sI", MAGIC, 1 << 20) + bytes(4)
        data = bytearray(encode(pin(payload=fake * 100_000)) + encode(pin(2)))
        data[0] ^= 1
        assert data.count(MAGIC) == 1
        assert [type(one) for one in scan(bytes(data))] == [Damage, Found]

    def test_a_record_of_another_kind_is_skipped(self) -> None:
        body = msgspec.msgpack.encode(["later", 1])
        length = struct.pack("<I", len(body))
        other = MAGIC + length + struct.pack("<I", zlib.crc32(length + body)) + body
        damage, good = scan(other + encode(pin()))
        assert "another kind" in str(damage)
        assert isinstance(good, Found)

    def test_cut_at_every_byte(self) -> None:
        entries = [pin(n, f"t/{n}", b"payload %d" % n) for n in range(4)]
        records = [encode(entry) for entry in entries]
        whole = b"".join(records)
        ends = [sum(map(len, records[: n + 1])) for n in range(4)]
        for cut in range(len(whole) + 1):
            found = list(scan(whole[:cut]))
            complete = sum(end <= cut for end in ends)
            good = [one.entry for one in found if isinstance(one, Found)]
            assert good == entries[:complete]
            bad = [one for one in found if isinstance(one, Damage)]
            start = ends[complete - 1] if complete else 0
            assert [(one.offset, one.size, one.torn) for one in bad] == (
                [(start, cut - start, True)] if cut > start else []
            )

    def test_every_flipped_bit_costs_one_record_at_most(self) -> None:
        entries = [pin(n, f"t/{n}", b"%d" % n) for n in range(5)]
        records = [encode(entry) for entry in entries]
        whole = b"".join(records)
        chance = random.Random(1)
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 1 << chance.randrange(8)
            found = list(scan(bytes(data)))
            assert sum(one.size for one in found) == len(whole), "every byte is accounted for"
            hit = next(n for n in range(5) if place < sum(map(len, records[: n + 1])))
            good = [one.entry for one in found if isinstance(one, Found)]
            assert good == entries[:hit] + entries[hit + 1 :]
            (bad,) = [one for one in found if isinstance(one, Damage)]
            assert (bad.offset, bad.size) == (sum(map(len, records[:hit])), len(records[hit]))

    @given(st.binary(max_size=300), st.integers(0, 10_000), st.integers(0, 100))
    @settings(max_examples=examples(500), deadline=None)
    def test_whatever_is_written_over_a_part_of_it(self, junk: bytes, where: int, cut: int) -> None:
        entries = [pin(n, f"t/{n}", b"y" * 40) for n in range(8)]
        records = [encode(entry) for entry in entries]
        whole = b"".join(records)
        where %= len(whole)
        data = (whole[:where] + junk + whole[where + len(junk) :])[: len(whole) - cut]
        found = list(scan(data))
        assert sum(one.size for one in found) == len(data)
        good = [one.entry for one in found if isinstance(one, Found)]
        at, untouched = 0, []
        for entry, record in zip(entries, records, strict=True):
            if at + len(record) <= len(data) and data[at : at + len(record)] == record:
                untouched.append(entry)
            at += len(record)
        assert good == untouched


class TestFile:
    async def test_what_was_told_is_there_after_a_restart(self, tmp_path: Path) -> None:
        pins = pin_journal(tmp_path)
        assert await pins.start() == []
        assert await store(pins, pin(1, "a"), pin(2, "b"), pin(3, "c")) == [None] * 3
        assert await store(pins, pin(4, "a"), Unpin("n", "b", b"")) == [None] * 2
        # No stop(): what was told must not need one.
        assert [(one.number, one.topic) for one in await content(tmp_path)] == [(3, "c"), (4, "a")]
        await pins.stop()

    async def test_it_is_on_disk_before_it_is_told(self, tmp_path: Path, monkeypatch) -> None:
        synced: list[int] = []
        real = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (real(fd), synced.append(os.fstat(fd).st_size)))
        pins = pin_journal(tmp_path)
        await pins.start()
        synced.clear()
        await store(pins, pin(1))
        assert synced == [len(encode(pin(1)))]
        await pins.stop()

    async def test_fields_tell_pins_apart_whatever_their_order(self, tmp_path: Path) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()
        one, two = (msgspec.msgpack.encode(dict(items)) for items in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]))
        other = msgspec.msgpack.encode({"a": 1})
        await store(pins, pin(1, fields=one), pin(2, fields=other), pin(3, fields=two))
        await pins.stop()
        assert [one.number for one in await content(tmp_path)] == [2, 3]

    async def test_a_start_writes_anew_what_is_dead(self, tmp_path: Path) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()
        await store(pins, *(pin(n) for n in range(50)))
        await pins.stop()
        assert (tmp_path / "pins.log").stat().st_size == sum(len(encode(pin(n))) for n in range(50))
        await content(tmp_path)
        assert (tmp_path / "pins.log").read_bytes() == encode(pin(49))
        assert [one.name for one in tmp_path.iterdir()] == ["pins.log"]

    async def test_a_file_that_is_mostly_dead_is_written_anew_while_it_runs(self, tmp_path: Path) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()
        large = b"z" * 100_000
        await store(pins, pin(1, "stays", b"old"), *(pin(n, payload=large) for n in range(40)))
        await store(pins, pin(41, "after", b"new"))
        await pins.stop()
        assert pins.rewritten == 1
        assert (tmp_path / "pins.log").stat().st_size < 120_000
        assert [one.topic for one in await content(tmp_path)] == ["stays", "t", "after"]

    async def test_no_file_and_an_empty_one(self, tmp_path: Path) -> None:
        assert await content(tmp_path) == []
        assert (tmp_path / "pins.log").read_bytes() == b""
        assert await content(tmp_path) == []

    async def test_one_left_over_from_a_crash_while_writing_anew(self, tmp_path: Path) -> None:
        (tmp_path / "pins.log").write_bytes(encode(pin(1)) + encode(pin(2)))
        (tmp_path / "pins.log.new").write_bytes(encode(pin(9))[:-3])
        assert await content(tmp_path) == [pin(2)]
        assert [one.name for one in tmp_path.iterdir()] == ["pins.log"]


class TestDamage:
    async def test_the_good_part_is_kept_and_the_damage_told(self, tmp_path: Path, caplog) -> None:
        records = [encode(pin(n, f"t/{n}")) for n in range(5)]
        data = bytearray(b"".join(records))
        data[len(records[0]) + len(records[1]) + 20] ^= 0x40
        (tmp_path / "pins.log").write_bytes(data)
        pins = pin_journal(tmp_path)
        with caplog.at_level(logging.WARNING):
            found = await pins.start()
        assert [one.number for one in found] == [0, 1, 3, 4]
        place = len(records[0]) + len(records[1])
        assert f"wrong checksum at byte {place}, {len(records[2])} bytes skipped" in caplog.text
        assert (pins.figures()["damaged"], pins.figures()["damaged_bytes"]) == (1, len(records[2]))
        assert (tmp_path / "pins.log.damaged").read_bytes() == data, "what was there can still be looked at"
        assert await store(pins, pin(9, "new")) == [None]
        await pins.stop()
        caplog.clear()
        assert [one.number for one in await content(tmp_path)] == [0, 1, 3, 4, 9]
        assert not caplog.records, "told once"

    async def test_a_torn_end_is_cut(self, tmp_path: Path, caplog) -> None:
        good = encode(pin(1, "a")) + encode(pin(2, "b"))
        torn = encode(pin(3, "c"))
        for cut in range(1, len(torn)):
            (tmp_path / "pins.log").write_bytes(good + torn[:cut])
            pins = pin_journal(tmp_path)
            with caplog.at_level(logging.WARNING):
                assert await pins.start() == [pin(1, "a"), pin(2, "b")]
            assert "not written to its end" in caplog.text
            caplog.clear()
            assert (tmp_path / "pins.log").read_bytes() == good
            await store(pins, pin(4, "d"))
            await pins.stop()
            assert (tmp_path / "pins.log").read_bytes() == good + encode(pin(4, "d"))
        assert [one.name for one in tmp_path.iterdir()] == ["pins.log"]

    async def test_random_damage_of_any_kind_starts(self, tmp_path: Path) -> None:
        chance = random.Random(7)
        whole = b"".join(encode(pin(n, f"t/{n}", b"p" * n)) for n in range(30))
        for _ in range(100):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            (tmp_path / "pins.log").write_bytes(data[: chance.randrange(len(data))])
            pins = pin_journal(tmp_path)
            before = await pins.start()
            await store(pins, pin(99, "new"))
            await pins.stop()
            assert await content(tmp_path) == [*before, pin(99, "new")]

    async def test_one_that_rots_while_the_broker_runs(self, tmp_path: Path, caplog) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()
        await store(pins, pin(1, "rots"), pin(2, "stays"))
        with (tmp_path / "pins.log").open("r+b") as file:
            file.seek(15)
            file.write(b"\xff")
        with caplog.at_level(logging.WARNING):
            await store(pins, *(pin(n, payload=b"z" * 100_000) for n in range(40)))
            await pins.stop()
        assert "could be read before at byte 0" in caplog.text
        assert [one.topic for one in await content(tmp_path)] == ["stays", "t"]


class TestDisk:
    async def test_a_full_disk_refuses_the_pin_and_nothing_else(self, tmp_path: Path, monkeypatch) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()
        await store(pins, pin(1, "a"))
        real = os.pwrite

        def full(fd: int, data, at: int) -> int:
            if at + len(data) <= 300:
                return real(fd, data, at)
            if at < 300:
                return real(fd, data[: 300 - at], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        results = await store(pins, pin(2, "b", b"x" * 500), pin(3, "c"), pin(4, "d", b"x" * 500), pin(5, "e"))
        assert [result and result.errno for result in results] == [errno.ENOSPC, None, errno.ENOSPC, None]
        assert pins.figures()["refused"] == 2
        monkeypatch.undo()
        assert await store(pins, pin(6, "f", b"x" * 500)) == [None]
        await pins.stop()
        assert [one.topic for one in await content(tmp_path)] == ["a", "c", "e", "f"]

    async def test_a_failed_fsync_is_no_success(self, tmp_path: Path, monkeypatch) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", broken)
        (result,) = await store(pins, pin(1))
        assert result is not None
        assert result.errno == errno.EIO
        monkeypatch.undo()
        await pins.stop()
        assert await content(tmp_path) == []

    async def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch, caplog) -> None:
        """As a file system that is mounted read-only says it; what is there is read."""
        (tmp_path / "pins.log").write_bytes(encode(pin(1)) + encode(pin(2)) + encode(pin(3))[:-1])
        real = os.open

        def read_only(path, flags: int, mode: int = 0o777) -> int:
            if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, flags, mode)

        monkeypatch.setattr(os, "open", read_only)
        pins = pin_journal(tmp_path)
        assert await pins.start() == [pin(2)]
        assert "each later change tries it again" in caplog.text
        (result,) = await store(pins, pin(3))
        assert result is not None
        assert result.errno == errno.EROFS
        monkeypatch.undo()
        assert await store(pins, pin(4, "u")) == [None], "once it can be written again, it is"
        await pins.stop()
        assert [one.number for one in await content(tmp_path)] == [2, 4]

    async def test_a_rewrite_that_fails_leaves_the_file_as_it_was(self, tmp_path: Path, monkeypatch) -> None:
        pins = pin_journal(tmp_path)
        await pins.start()

        def broken(self, target):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Path, "replace", broken)
        await store(pins, *(pin(n, payload=b"z" * 100_000) for n in range(40)))
        assert await store(pins, pin(41, "u")) == [None]
        await pins.stop()
        monkeypatch.undo()
        assert pins.rewritten == 0
        assert [one.topic for one in await content(tmp_path)] == ["t", "u"]
        assert [one.name for one in tmp_path.iterdir()] == ["pins.log"]


class TestFolder:
    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataFailed, match="can't be used"):
            DataFolder(tmp_path / "file" / "data").open()
        with pytest.raises(DataFailed, match="can't be used"):
            DataFolder(tmp_path / "file").open()

    def test_the_guid_is_remembered(self, tmp_path: Path) -> None:
        folder = DataFolder(tmp_path)
        assert folder.guid() is None
        folder.remember("ab" * 16)
        assert folder.guid() == DataFolder(tmp_path).guid() == "ab" * 16

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"guid": 1}', '{"guid": "zz"}', '{"guid": "abcd"}', "\xff"])
    def test_a_damaged_identity_is_told(self, tmp_path: Path, caplog, content: str) -> None:
        (tmp_path / "broker.json").write_text(content, encoding="latin-1")
        assert DataFolder(tmp_path).guid() is None
        assert "the broker gets a new" in caplog.text

    def test_an_identity_that_cannot_be_written_is_told(self, tmp_path: Path, caplog) -> None:
        (tmp_path / "broker.json.new").mkdir()
        DataFolder(tmp_path).remember("ab" * 16)
        assert "this broker will have a new guid after a restart" in caplog.text
