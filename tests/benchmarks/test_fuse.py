"""The benchmark of the file door: each part works on real mounts for a moment. Speed is not checked."""

import os
import struct

import pytest

from benchmarks.fuse import work
from benchmarks.fuse.mounts import SOURCE, Mounted, compile_plain, stage
from benchmarks.fuse.plan import Pairs
from benchmarks.fuse.report import Figures, judge, markdown, ratios
from benchmarks.peers.process import ProcessError

MACHINE = {"processor": "p", "cores": 2, "memory_gib": 1, "system": "s", "python": "3", "load_before": 0.0}
pytestmark = pytest.mark.timeout(240)  # many processes, each with an end of its own to every wait


def figures() -> Figures:
    return Figures(MACHINE, ["busway 1"], {"rounds": 1, "seconds": 1.0})


def test_the_c_file_system_keeps_one_message_with_its_metadata() -> None:
    with stage() as made:
        place = made.mount("plain").place / "fusebus"
        publisher, reader = os.open(place, os.O_RDWR), os.open(place, os.O_RDWR)
        assert os.read(reader, 4096) == b""
        assert os.write(publisher, struct.pack("@QQ", 2, 7) + b"hello world") == 27
        assert os.read(reader, 4096) == struct.pack("@5Q", 7, 0, 0, 11, 16) + b"hello world\0\0\0\0\0"
        assert os.read(reader, 4096) == b""
        os.write(reader, struct.pack("@QQ", 2, 7) + b"x" * 16)
        assert os.read(publisher, 4096) == struct.pack("@5Q", 7, 1, 1, 16, 16) + b"x" * 16
        for wrong in (b"x" * 15, struct.pack("@QQ", 3, 0)):
            with pytest.raises(OSError, match="Invalid"):
                os.write(publisher, wrong)
        os.close(publisher)
        os.close(reader)
    assert not place.exists()


def test_both_file_systems_are_measured_in_turn() -> None:
    found = work.pairs([4, 512], 1, 0.05)
    assert [(one["round"], one["size"]) for one in found] == [(0, 4), (0, 512)]
    for one in found:
        assert all(one[f"{what}_{name}"] > 0 for what in ("pairs", "publishes") for name in ("plain", "busway"))


def test_one_core_is_left_again() -> None:
    before = os.sched_getaffinity(0)
    assert work.one_core([4], 1, 0.05)[0]["pairs_busway"] > 0
    assert os.sched_getaffinity(0) == before


def test_the_way_to_a_native_subscriber_is_timed() -> None:
    found = work.trips(512, 20, 2)
    assert [set(one) for one in found] == [{"file", "native"}] * 2
    assert all(time > 0 for one in found for time in one.values())


def test_a_message_that_does_not_come_back_whole_ends_the_measurement(tmp_path) -> None:
    (tmp_path / "fusebus").write_bytes(b"no bus")
    with stage() as made, pytest.raises(ProcessError, match="did not come back whole"):
        made.run("pairs", Pairs(mounts={"plain": str(tmp_path)}, sizes=[4], rounds=1, seconds=0.1), 1)


def test_what_can_not_be_mounted_is_told(tmp_path) -> None:
    command = ["sh", "-c", "echo no such thing as $0 >&2; exit 3"]
    with Mounted("broken", command, tmp_path) as broken, pytest.raises(ProcessError, match="no such thing as"):
        broken.wait_until_mounted()


def test_a_compiler_that_is_not_there_is_told(tmp_path, monkeypatch) -> None:
    assert SOURCE.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProcessError, match=r"needs a C compiler, pkg-config and the headers of libfuse3: cc is not"):
        compile_plain(tmp_path)


def test_the_goals_are_those_of_what_was_measured() -> None:
    found = figures()
    assert not list(judge(found))
    row = {"size": 4.0, "publishes_plain": 30.0, "publishes_busway": 15.0, "pairs_plain": 10.0}
    found.pairs = [row | {"round": turn, "pairs_busway": rate} for turn, rate in enumerate((4.0, 6.0, 7.0))]
    found.one_core = [row | {"round": 0, "pairs_busway": 4.0}]
    found.trips = [{"file": 200.0, "native": 100.0}, {"file": 300.0, "native": 120.0}]
    assert ratios(found.pairs, "pairs", 4) == [0.4, 0.6, 0.7]
    placed, core = judge(found)
    assert (placed.value, placed.reached) == (0.6, True)
    assert (core.value, core.reached) == (0.4, False)
    assert "4 bytes" in placed.what
    text = markdown(found)
    assert "| busway fusebus | 4 | 6 (4 to 7) | 0.60 (0.40 to 0.70) | 15 (15 to 15) | 0.50 (0.50 to 0.50) |" in text
    assert "| to the file | 250 (200 to 300) |" in text
