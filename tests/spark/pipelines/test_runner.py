"""`busway lake run` around its updates, without Spark: a lost bus, a mistake in a file, a server in use."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from busway.cli.app import app
from busway.cli.lake.run import _state
from busway.errors import Disconnected
from busway.spark.pipelines.runner import BusUnreachable, Pipeline, PipelineFailed, Report
from busway.spark.runtime import connect_server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "orders.sql").write_text("CREATE STREAMING TABLE a AS SELECT 1;")
    return tmp_path / "orders.sql"


def test_a_bus_that_is_gone_is_looked_for_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: Iterator[Any] = iter([ConnectionError("x can't be reached"), Disconnected("gone"), {"b/s": 7}])

    def marks(_: Pipeline) -> Any:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Pipeline, "_ends", marks)
    assert Pipeline(file, tmp_path, {}).wait(0.0, lambda _: False) is False
    assert next(looks, None) is None
    assert [record.message for record in caplog.records] == ["x can't be reached; the connection will be retried"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("x can't be reached"), BusUnreachable),
        (Disconnected("gone"), BusUnreachable),
        (PipelineFailed("wrong"), PipelineFailed),
        (RuntimeError("other"), PipelineFailed),
    ],
)
def test_an_update_tells_a_bus_that_is_gone_from_a_mistake(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type
) -> None:
    def declare(*_: object) -> str:
        raise error

    monkeypatch.setattr(Pipeline, "_declare", declare)
    monkeypatch.setattr("busway.spark.pipelines.runner._listening", lambda *_: contextlib.nullcontext())
    with pytest.raises(PipelineFailed) as raised:
        Pipeline(file, tmp_path, {}).update(None)  # type: ignore[arg-type]
    assert type(raised.value) is kind
    assert str(error) in str(raised.value)


class Script:
    """What the updates of a run do, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *updates: Report | Exception | None) -> None:
        self._updates = iter(updates)
        monkeypatch.setattr(connect_server, "start", lambda *_: None)
        monkeypatch.setattr(connect_server, "connected", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(Pipeline, "update", self.update)
        monkeypatch.setattr(Pipeline, "wait", lambda _, _seconds, _ended: False)

    def update(self, *_: object, **__: object) -> Report:
        done = next(self._updates)
        if done is None:
            os.kill(os.getpid(), signal.SIGTERM)
            return Report(rows={"last": 1})
        if isinstance(done, Exception):
            raise done
        return done


def test_a_run_goes_on_when_the_bus_comes_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, Report(), BusUnreachable("away"), BusUnreachable("away"), None)
    done = CliRunner().invoke(app, ["lake", "run", str(file), "--every", "1ms", "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["rows"] for line in done.stdout.splitlines()] == [{}, {"last": 1}]
    assert done.stderr.count("away; the update will be retried") == 2


@pytest.mark.parametrize(
    ("updates", "words"),
    [([BusUnreachable("away")], []), ([BusUnreachable("away")], ["--once"]), ([Report(), PipelineFailed("away")], [])],
)
def test_but_not_at_its_start_and_not_with_a_mistake(
    file: Path, monkeypatch: pytest.MonkeyPatch, updates: list[Report | Exception], words: list[str]
) -> None:
    Script(monkeypatch, *updates)
    done = CliRunner().invoke(app, ["lake", "run", str(file), *words])
    assert (done.exit_code, "busway: away" in done.stderr) == (1, True), done.output


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\n\nfoo.bar()\n", "w.py, line 3: name 'foo' is not defined"),
        ("a = 1\nb = (\n", "w.py, line 2: '(' was never closed"),
        ("def f():\n    raise ValueError('so')\nf()\n", "w.py, line 2: so"),
    ],
)
def test_a_mistake_in_python_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (tmp_path / "w.py").write_text(text)
    names = ("add_pipeline_analysis_context", "block_session_mutations")
    for name in names:
        monkeypatch.setattr(f"pyspark.pipelines.{name}.{name}", lambda **_: contextlib.nullcontext())
    with pytest.raises(PipelineFailed) as raised:
        Pipeline(tmp_path / "w.py", tmp_path, {})._import(None, "graph")  # type: ignore[arg-type]
    assert str(raised.value).startswith(told)


def test_sql_and_python_have_a_state_each() -> None:
    assert _state(Path("/x/orders.sql")) == Path("/x/.busway/orders")
    assert _state(Path("/x/orders.py")) == Path("/x/.busway/orders.py")


def test_a_server_that_is_used_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[Path] = []
    there = connect_server.Server(1, 2, "", "", [])
    monkeypatch.setattr(connect_server, "stop", lambda state: not stopped.append(state))
    assert not connect_server.stop_unused(tmp_path)
    with connect_server.use(tmp_path):
        monkeypatch.setattr(connect_server, "find", lambda _: there)
        done = CliRunner().invoke(app, ["lake", "stop", str(tmp_path)])
        assert (done.exit_code, "is running: end its run first" in done.stderr) == (1, True), done.output
    assert stopped == []
    assert connect_server.stop_unused(tmp_path)
    assert stopped == [tmp_path]


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["stop", "x"], "--lake"), (["stop", "x"], "--url"), (["optimize"], "--path"), (["optimize"], "--url")],
)
def test_a_flag_that_would_do_nothing_is_refused(words: list[str], flag: str) -> None:
    done = CliRunner().invoke(app, ["lake", *words, flag, "y"])
    assert (done.exit_code, f"No such option: {flag}" in done.stderr) == (2, True), done.output
