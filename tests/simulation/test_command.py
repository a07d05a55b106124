"""`python -m tests.simulation`: its output, and running a failed seed again."""

import shlex
import sys

import pytest

from busway.client.durable.publisher import DurablePublisher
from tests.simulation.__main__ import main
from tests.simulation.runs.many import simulate_many


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    return main()


def test_seeds_that_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(monkeypatch, "5", "--first", "30", "--processes", "1", "--nodes", "3-7", "--kind", "reset", "--faults", "3")
        == 0
    )
    told = capsys.readouterr()
    assert "5 seeds from 30 on, 0 failed" in told.out
    assert "x reset" in told.out
    assert "5/5 seeds, 0 failed" in told.err


def test_a_seed_that_fails_says_how_it_is_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DurablePublisher, "restore", lambda self: None)
    options = ["--nodes", "1-1", "--steps", "30", "--faults", "8", "--kind", "reset"]
    assert run(monkeypatch, "12", "--processes", "1", *options) == 1
    told = capsys.readouterr().out
    again = next(line for line in told.splitlines() if "again:" in line)
    words = shlex.split(again.partition("simulation ")[2])
    assert words[2:] == options
    assert run(monkeypatch, *words) == 1
    shown = capsys.readouterr().out
    assert f"seed {words[1]}: FAILED" in shown
    assert "connects" in shown
    assert next(line for line in told.splitlines() if line.startswith("  hash:")) in shown


@pytest.mark.parametrize(
    "wrong",
    [["0"], ["--kind", "flood"], ["--clients", "-1"], ["--nodes", "7-3"], ["--nodes", "0"], ["--nodes", "many"]],
)
def test_bad_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_several_processes_give_the_same_sum() -> None:
    one = simulate_many(0, 23, processes=1, steps=3, clients=2)
    two = simulate_many(0, 23, processes=2, steps=3, clients=2)
    assert one == two
    assert one.seeds == 23
