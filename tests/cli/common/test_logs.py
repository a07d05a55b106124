"""Log lines of the commands: time, level and logger on each, as text or JSON."""

import json
import re
import signal

import pytest

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [a-z.]+: \S.*")


@pytest.fixture
def wrong_list(tmp_path):
    """A list of servers with a mistake, of which a broker warns."""
    file = tmp_path / "list.json"
    file.write_text('[{"connection": {"port": 1, "tiemout": "1s"}}]')
    return ("serve", "--for", "10ms", "--tcp", "127.0.0.1:0", "--servers-file", file)


async def test_each_line_has_time_level_and_logger(shell, wrong_list):
    done = await shell.run(*wrong_list)
    (line,) = (line for line in done.notes.splitlines() if "tiemout" in line)
    assert LINE.fullmatch(line)
    assert " WARNING busway.cluster: " in line
    assert "tiemout" not in (await shell.run(*wrong_list, "--log-level", "error")).notes
    assert "listens on" in (await shell.run(*wrong_list, "--log-level", "info")).notes


async def test_lines_of_json(shell, wrong_list):
    done = await shell.run(*wrong_list, "--log-format", "json")
    lines = [json.loads(line) for line in done.notes.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} == {"info", "warning"}
    (warning,) = (line for line in lines if "tiemout" in line["message"])
    assert warning["logger"] == "busway.cluster"


@pytest.mark.parametrize("flags", [("--log-level", "loud"), ("--log-format", "xml")])
async def test_names_that_are_none_are_refused(shell, flags):
    done = await shell.run("serve", "--tcp", "127.0.0.1:0", "--for", "10ms", *flags)
    assert done.code == 2
    assert flags[1] in done.notes


async def test_variables_of_client_commands(shell):
    done = await shell.run("info", BUSWAY_LOG_LEVEL="loud")
    assert (done.code, "'loud' is not a log level: choose debug, info, warning, error" in done.notes) == (2, True)


async def test_a_command_that_goes_on_logs_losses(shell, server):
    sub = await shell.start("sub", "**", BUSWAY_LOG_FORMAT="json")
    assert "subscribed" in await sub.ready()
    for session in server._hub.sessions.values():
        session.transport.abort()
    lost, again = json.loads(await sub.ready()), json.loads(await sub.ready())
    assert (lost["level"], lost["url"]) == ("warning", server.addresses[0])
    assert lost["message"].startswith("connection lost to ")
    assert (again["attempts"] > 0, again["interrupted"]) == (True, 1)
    assert again["message"].startswith("connected again to ")
    assert (await sub.end(signal.SIGINT)).code == 130
