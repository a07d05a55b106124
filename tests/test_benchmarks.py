"""The report of the benchmarks: what its rows are made of."""

from benchmarks.peers.goals import Medians
from benchmarks.peers.load import Run, Sample
from benchmarks.peers.report import cells, markdown

SLOW = {"rate_before": 1.0, "rate_during": 1.0, "memory_growth": 0.0, "others_lost": 0.0, "miscounted": 0.0}


def slow(repeat: int, published: int, received: int) -> Sample:
    figures = {"published": published, "received": received, "missed": published - received}
    return Sample("slow", "busway-tcp", repeat, SLOW | figures)


def test_the_row_of_the_stopped_subscriber_is_one_repeat_so_that_it_adds_up() -> None:
    samples = [slow(0, 100, 70), slow(1, 300, 10), slow(2, 200, 90)]
    *_, published, received, missed, _lost = cells(Medians(samples), "slow", "busway-tcp")
    assert (published, received, missed) == ("200", "90", "110")
    machine = {
        "processor": "p", "cores": 2, "memory_gib": 1, "system": "s", "python": "3", "load_before": 0.0,
    }  # fmt: skip
    settings = {"size": 128, "seconds": 2.0, "warm": 0.4, "repeats": 3}
    text = markdown(Run(machine, {"busway": "busway 1"}, settings, samples, []))
    assert "| busway-tcp | 1 | 1 | 0.0 | 200 | 90 | 110 | 0 |" in text


def test_other_rows_are_medians_by_column() -> None:
    idle = [Sample("idle", "busway-tcp", repeat, {"bytes_each": value}) for repeat, value in enumerate((3.0, 1.0, 2.0))]
    assert cells(Medians(idle), "idle", "busway-tcp") == ["2"]


def test_one_of_an_even_number_of_repeats_is_shown() -> None:
    row = cells(Medians([slow(0, 100, 70), slow(1, 300, 10)]), "slow", "busway-tcp")
    assert row[3:6] == ["100", "70", "30"]
