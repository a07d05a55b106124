"""The report of the benchmarks: its rows and how they are computed."""

import pytest

from benchmarks.peers.goals import Medians, judge
from benchmarks.peers.load import Load, Run, Sample
from benchmarks.peers.long import LONG
from benchmarks.peers.report import cells, markdown
from benchmarks.peers.role import Acknowledged
from benchmarks.peers.stored import STORED
from benchmarks.peers.systems import STORES, find

SLOW = {"rate_before": 1.0, "rate_during": 1.0, "memory_growth": 0.0, "others_lost": 0.0, "miscounted": 0.0}


def slow(repeat: int, published: int, received: int) -> Sample:
    figures = {"published": published, "received": received, "missed": published - received}
    return Sample("slow", "busway-tcp", repeat, SLOW | figures)


def run_of(samples: list[Sample], *, data: bool = False) -> Run:
    machine = {
        "processor": "p", "cores": 2, "memory_gib": 1, "system": "s", "python": "3", "filesystem": "ext4", "load_before": 0.0,
    }  # fmt: skip
    settings = {"size": 128, "seconds": 2.0, "warm": 0.4, "messages": 1_000_000, "data": data, "repeats": 3}
    return Run(machine, {"busway": "busway 1"}, settings, samples, [])


def test_the_row_of_the_stopped_subscriber_is_one_repeat_so_that_it_adds_up() -> None:
    samples = [slow(0, 100, 70), slow(1, 300, 10), slow(2, 200, 90)]
    *_, published, received, missed, _lost = cells(Medians(samples), "slow", "busway-tcp")
    assert (published, received, missed) == ("200", "90", "110")
    text = markdown(run_of(samples))
    assert "| busway-tcp | 1 | 1 | 0.0 | 200 | 90 | 110 | 0 |" in text


def test_other_rows_are_medians_by_column() -> None:
    idle = [Sample("idle", "busway-tcp", repeat, {"bytes_each": value}) for repeat, value in enumerate((3.0, 1.0, 2.0))]
    assert cells(Medians(idle), "idle", "busway-tcp") == ["2"]


def test_one_of_an_even_number_of_repeats_is_shown() -> None:
    row = cells(Medians([slow(0, 100, 70), slow(1, 300, 10)]), "slow", "busway-tcp")
    assert row[3:6] == ["100", "70", "30"]


def stored(system: str, repeat: int, rate: float) -> Sample:
    return Sample("written", system, repeat, {"rate": rate})


def test_stored_messages_are_compared_best_way_with_best_way_in_each_repeat() -> None:
    samples = [
        stored("busway-streams many", 0, 60.0), stored("busway-streams single", 0, 20.0),
        stored("jetstream async", 0, 4.0), stored("jetstream single", 0, 3.0), stored("redis-streams", 0, 10.0),
        stored("busway-streams many", 1, 10.0), stored("busway-streams single", 1, 90.0),
        stored("jetstream async", 1, 30.0), stored("jetstream single", 1, 5.0), stored("redis-streams", 1, 10.0),
    ]  # fmt: skip
    [goal] = judge(samples)
    assert goal.what == "durable publish, written: rate / the better of JetStream and Redis"
    assert (goal.value, goal.bar, goal.reached) == (4.5, 5, False)  # between 60/10 and 90/30


@pytest.mark.parametrize("missing", ["busway-streams", "jetstream", "redis-streams"])
def test_nothing_is_said_of_stored_messages_if_one_of_the_three_is_missing(missing: str) -> None:
    names = ["busway-streams", "jetstream", "redis-streams"]
    assert judge([stored(name, 0, 1.0) for name in names])
    assert not judge([stored(name, 0, 1.0) for name in names if name != missing])


def test_the_report_says_whether_busway_had_a_data_folder() -> None:
    assert "Busway had a data folder in all work." in markdown(run_of([], data=True))
    assert "Busway had a data folder in all work." not in markdown(run_of([]))
    assert "kind ext4; 1,000,000 are read" in markdown(run_of([]))


def test_the_rate_of_acknowledgements_counts_whole_bursts() -> None:
    acknowledged = Acknowledged(Load("", seconds=10.0, warm=2.0), now=100.0)
    for burst, moment in enumerate((101.0, 103.0, 105.0, 110.5)):
        for number in range(256):
            going = acknowledged.add(1, moment + number / 1e6)
            assert going == (burst < 3)
    assert acknowledged.rate == pytest.approx(3 * 256 / 9.5)


def test_acknowledgements_of_the_warm_up_alone_have_no_rate() -> None:
    acknowledged = Acknowledged(Load("", seconds=10.0, warm=2.0), now=100.0)
    acknowledged.add(256, 101.0)
    with pytest.raises(RuntimeError, match="too few"):
        _ = acknowledged.rate


HERE = [name for name in STORES if name != "redis-streams"]
"""Those whose programs come with the locked dependencies; who compares with Redis installs its server."""
WAYS = [(name, work, mode) for name in HERE for work in STORED for mode in find(name).ways(work)]


@pytest.mark.parametrize(("name", "work", "mode"), WAYS)
def test_every_way_stores_and_gets_all_it_says(name: str, work: str, mode: str) -> None:
    assert find(name).version() is not None, f"{name} is not installed"
    values = STORED[work](name, Load("", seconds=0.5, warm=0.05, messages=3000, mode=mode))
    if name.startswith("busway"):  # what others lose is told in the report; it is not ours to promise
        assert values["lost"] == 0
    assert values["rate"] > 0
    if work in {"catchup", "take"}:
        assert values["received"] == (3000 if work == "catchup" else 600)


def test_a_long_stream_is_as_long_as_was_asked_for() -> None:
    values = LONG["long"]("busway-streams", Load("", gib=0.1))
    assert 0.1 <= values["gib"] < 0.2
    assert values["opened"] > 0
    assert values["opened_killed"] > 0


def test_one_stream_is_read_to_arrow_whole() -> None:
    values = LONG["stream"]("busway-streams", Load("", messages=5000))
    assert set(values) == {"append", "arrow", "payload", "log_append", "log_arrow", "log_payload"}
    assert all(rate > 0 for rate in values.values())
