"""A log is a list: any sequence of calls has the results of the model, in memory, on disk and on simulated files."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from busway import _core
from busway._core import Log, SimulatedFiles, block_records
from tests.support.stored import Model, last_sequences, read_all, row, wait_safe
from tests.support.strength import examples

TOPICS = st.sampled_from(["a", "b/c", "é", ""])
SIZES = st.sampled_from([0, 1, 200, 5000])


class Machine(RuleBasedStateMachine):
    store: ClassVar[Literal["memory", "disk", "simulated"]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.files = SimulatedFiles()
        self.model = Model()
        self.first = 0
        self.now = 100
        self.times: list[int] = []
        self.log = self.open()

    def open(self) -> Log:
        where = {"memory": None, "disk": self.folder, "simulated": self.files}[self.store]
        return Log.open(where, bucket_bytes=1000, bucket_age=50, max_age=0)

    @rule(
        topic=TOPICS,
        size=SIZES,
        session=st.integers(0, 2),
        step=st.integers(-20, 20),
        delay=st.sampled_from([-1000, -1000, 5, 30]),
        flush=st.booleans(),
    )
    def append(self, topic: str, size: int, session: int, step: int, delay: int, flush: bool) -> None:
        self.now += step
        number, due = len(self.model.records) + 1, max(self.now + delay, 0)
        given = row(topic, b"x" * size, session=session, number=number, due=due, fields=b"\x80", sender="me")
        assert self.log.append([given], self.now) == [self.model.append(given, self.now)]
        self.times.append(self.model.stored)
        if flush:
            self.log.flush()

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), flush=st.booleans())
    def release(self, data: st.DataObject, flush: bool) -> None:
        """Once, however often that is asked for."""
        assert wait_safe(self.log) is None
        key = data.draw(st.sampled_from(sorted(self.model.waiting)))
        _, _, block = self.log.read(self.model.waiting[key][1], 1)
        assert [self.log.release(block, self.now) for _ in range(2)] == [1, 0]
        self.model.release(key, self.now)
        self.times.append(self.model.stored)
        if flush:
            self.log.flush()

    @precondition(lambda self: len(self.model.records) > self.first)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.model.records[self.first :]))
        if known.session:
            given = row(known.topic, b"other", session=known.session, number=known.number)
            assert self.log.append([given], self.now) == [self.model.append(given)]

    @precondition(lambda self: self.store != "memory")
    @rule()
    def open_again(self) -> None:
        self.log.close()
        self.log = self.open()

    @rule(safety=st.sampled_from(["memory", "written", "synced"]))
    def change(self, safety: Literal["memory", "written", "synced"]) -> None:
        self.log.set(safety=safety)

    @rule(count=st.integers(1, 8), ahead=st.one_of(st.just(1 << 62), st.integers(0, 6)), setting=st.booleans())
    def trim(self, count: int, ahead: int, setting: bool) -> None:
        """What is held stays, whether that is said here or as a setting, and is counted."""
        assert wait_safe(self.log) is None
        hold = self.first + ahead
        self.log.set(max_count=count, hold=hold if setting else 1 << 63)
        gone, _, _ = self.log.trim(self.now, *() if setting else (hold,))
        held, size = self.log.held
        self.log.set(max_count=0, hold=1 << 63)
        assert bool(held) == bool(size)
        if held:
            assert self.first + gone + held > hold
            assert len(self.model.records) - self.first - gone - held >= count
        self.first += gone
        self.model.trim(self.first)
        assert self.log.first == self.first
        if gone:
            assert self.first <= hold
            assert len(self.model.records) - self.first >= count

    @rule(offset=st.integers(0, 60), most=st.sampled_from([1, 300, 3000, 1 << 20]))
    def read(self, offset: int, most: int) -> None:
        assert wait_safe(self.log) is None
        begin = max(offset, self.first)
        first, then, block = self.log.read(offset, most)
        found = self.model.records[begin:then]
        if begin >= len(self.model.records):
            assert block == b""
            return
        assert first == begin
        assert [r[0] for r in block_records(block)] == [known.offset for known in found] != []
        assert len(found) == 1 or len(block) <= most

    @rule(topic=TOPICS, sequence=st.integers(0, 20), back=st.integers(-5, 60))
    def find(self, topic: str, sequence: int, back: int) -> None:
        assert wait_safe(self.log) is None
        there = self.model.records[self.first :]
        wanted = (known.offset for known in there if known.topic == topic and known.sequence >= max(sequence, 1))
        assert self.log.find(topic, sequence) == next(wanted, None)
        later = (known.offset for known in there if self.times[known.offset] >= self.now - back)
        assert self.log.find_time(self.now - back) == next(later, len(self.model.records))
        selection = _core.Selection(topic)
        begin = self.log.skip(sequence, selection)
        assert begin >= sequence
        assert not any(known.topic == topic and known.sequence for known in there if sequence <= known.offset < begin)

    @invariant()
    def same(self) -> None:
        assert wait_safe(self.log) is None
        assert read_all(self.log) == self.model.records[self.first :]
        assert self.log.next == self.log.safe == len(self.model.records)
        assert last_sequences(self.log) == self.model.topics()
        assert self.log.waiting() == sorted(self.model.waiting.values())
        assert self.log.damage == []
        there: dict[str, list[int]] = {}
        for known in self.model.records[self.first :]:
            if known.sequence:
                there.setdefault(known.topic, []).append(known.sequence)
        assert self.log.topics() == sorted((topic, s[0], s[-1], len(s)) for topic, s in there.items())

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("store", ["memory", "disk", "simulated"])
def test_a_log_is_a_list(store: Literal["memory", "disk", "simulated"]) -> None:
    case = type("Case", (Machine,), {"store": store}).TestCase
    case.settings = settings(
        max_examples=examples(20) if store == "disk" else 100, stateful_step_count=30, deadline=None
    )
    case("runTest").runTest()
