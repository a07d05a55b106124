"""Wrong usage ends with exit code 2 in every command, before anything is sent: no server listens here."""

import pytest
import typer
from typer.testing import CliRunner

from busway.cli.app import app

NOWHERE = "tcp://127.0.0.1:1"
ARGUMENTS = {"stream": "orders", "channel": "billing", "topics": "orders/**", "to": "first", "query": "SELECT 1"}
"""Right values of arguments; any other is a topic."""
WRONG = {
    "TIME": "banana",
    "TIMES": "banana",
    "SIZE": "banana",
    "N": "banana",
    "N/s": "banana",
    "OCTAL": "banana",
    "POSITION": "banana",
    "PATTERN": "a//b",
    "TOPIC": "a//b",
    "STREAM": "-no name",
    "STREAM|PATTERN": "a//b",
    "CHANNEL": "-no name",
    "ADDRESS": "amqp://x",
    "NAME=VALUE": "novalue",
    "NAME=RULE": "a=re:(",
    "NAME=URL": "nourl",
    "KEY=VALUE": "novalue",
}
"""For each kind of value one that can't be meant."""
NEEDED = {
    ("pub", "--expires"): ["--durable"],
    ("pub", "--delay"): ["--durable"],
    ("reply", None): ["--echo"],
    ("serve", "--http-body"): ["--http", "127.0.0.1:0"],
}
"""Flags without which others are refused for another reason."""


def commands(command=None, path=()):
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))


def kind(parameter):
    return parameter.metavar


def cases():
    for path, command in commands():
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        for parameter in command.params:
            choices = parameter.type_descriptor.choices
            wrong = "banana" if choices else WRONG.get(kind(parameter))
            if wrong is None:
                continue
            words = [
                wrong if one is parameter else ARGUMENTS.get(one.name, "topic")
                for one in arguments
                if one.required or one is parameter
            ]
            if parameter.param_type_name == "option":
                flag = parameter.opts[0]
                words += [flag, wrong, *NEEDED.get((path[-1], flag), [])]
            if not any("--url" in one.opts and one is parameter for one in command.params) and path[0] != "serve":
                words += ["--url", NOWHERE] if any("--url" in one.opts for one in command.params) else []
            name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
            yield pytest.param([*path, *words, *NEEDED.get((path[-1], None), [])], id=" ".join((*path, name)))


@pytest.mark.parametrize("words", list(cases()))
def test_wrong_values_exit_with_2(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--lake" not in words and words[0] == "lake" and words[1] not in {"run", "stop"}:
        words = [*words, "--lake", "lake"]
    done = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "BUSWAY_URL": None}).invoke(app, words, prog_name="busway")
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert "Value error" not in done.output  # how pydantic begins what a parser says


@pytest.mark.parametrize(
    "words",
    [
        ["stream", "create", "orders", "orders/**", "--max-age", "banana"],
        ["stream", "create", "orders", "orders/**", "--max-age", "-5s"],
        ["stream", "update", "orders", "--once", "banana"],
        ["stream", "update", "orders"],
        ["channel", "update", "orders", "billing"],
        ["channel", "create", "orders", "billing", "--exclusive", "--nonsense"],
        ["channel", "seek", "orders", "billing", "yesterday"],
        ["pub", "re:[", "x", "-f", "novalue"],
        ["sub", "re:["],
        ["take", "orders"],
        ["nonsense"],
        ["stream", "nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(words):
    at = ["--url", NOWHERE] if len(words) > 2 and words[1] != "nonsense" else []
    done = CliRunner(env={"COLUMNS": "200", "BUSWAY_URL": NOWHERE}).invoke(app, [*words, *at], prog_name="busway")
    assert done.exit_code == 2, done.output
