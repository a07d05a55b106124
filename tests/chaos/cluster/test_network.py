"""The network of a trial loses exactly the chosen packets, and leaves nothing behind."""

import os
import select
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.cluster.network import TOOLS, Network, Unavailable, between, needed

ECHO = "import socket, sys; s = socket.create_server((sys.argv[1], 7)); print(flush=True); c, _ = s.accept()\nwhile d := c.recv(9): c.sendall(d)"
"""Gives back what comes on one connection."""
SAY = "import socket, sys; c = socket.create_connection((sys.argv[1], 7))\nfor d in sys.stdin.buffer: c.sendall(d); print(c.recv(9).decode(), end='', flush=True)"
"""Sends each line of its input, and prints what comes back."""


def namespace(pid: int | str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def test_cut_ways_lose_without_a_word_and_heal() -> None:
    """A connection outlives the cut in either direction: what was lost is sent again when there is a way."""
    with Network(["one", "two", "three"]) as network, ExitStack() as stack:

        def run(host: str, program: str) -> "subprocess.Popen[str]":
            command = network.command(host, sys.executable, "-c", program, network.address("two"))
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        echo = run("two", ECHO)
        assert echo.stdout is not None
        assert echo.stdout.readline()
        say = run("one", SAY)
        assert say.stdin is not None
        assert say.stdout is not None
        for number, ways in enumerate([(), {("one", "two")}, {("two", "one")}, between({"one"}, {"two", "three"})]):
            network.cut(ways)
            print(number, file=say.stdin, flush=True)
            if ways:
                assert select.select([say.stdout], [], [], 1.0)[0] == []  # the system tries more than once in that time
                network.heal()
            assert say.stdout.readline() == f"{number}\n"


def test_nothing_is_left_of_it() -> None:
    outside = namespace("self")
    network = Network(["one", "two"])
    with network:
        inside = {namespace(holder.pid) for holder in network._holders.values()}
        assert len(inside - {outside, ""}) == 3
    assert not inside & {namespace(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()}


def test_who_lacks_something_is_told_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in needed()
    with pytest.raises(Unavailable, match="need root"):
        Network(["one"])
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ip" else name)
    assert needed() == f"the commands ip are missing: apt-get install {TOOLS['ip']}"
