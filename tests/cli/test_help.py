"""The help of every command, and the rules that all flags follow."""

import re

import pytest
import typer
from typer.testing import CliRunner

from busway.cli.app import app


def commands(command=None, path=()):
    """Every command and group with its path."""
    command = command or typer.main.get_command(app)
    yield pytest.param(path, command, id=" ".join(path) or "busway")
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))


def show(path):
    done = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, [*path, "--help"], prog_name="busway")
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_flags_without_a_value_show_none(path, command):
    shown = show(path)
    assert "--help" in shown
    assert "<bool>" not in shown
    assert "BOOLEAN" not in shown


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_short_flags_mean_the_same_everywhere(path, command):
    for flag in command.params:
        for short, long in (("-f", "--field"), ("-q", "--quiet"), ("-n", "--count"), ("-w", "--where")):
            if short in flag.opts and "--limit" not in flag.opts:
                assert long in flag.opts
        if "--field" in flag.opts:
            assert "-f" in flag.opts
        if "--quiet" in flag.opts:
            assert "-q" in flag.opts
        assert "--fields" not in flag.opts  # too close to --field


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_help_is_plain_english(path, command):
    """Phrases that readers stumbled over."""
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", show(path)).split())
    for phrase in ("still told", "so many", "is told", "are told", "any number of them", "also none", "those that"):
        assert phrase not in shown


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_each_example_has_its_own_line(path, command):
    """An example that is joined to another one can't be copied."""
    for line in (command.help or "").splitlines():
        assert len(re.findall(r"(?<!\S)busway [a-z]+", line)) <= 1 or "|" in line
