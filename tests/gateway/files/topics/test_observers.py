"""A topic's file only shows messages: publishers do not wait for its mount, and an attribute counts missed messages."""

import os
import signal
from pathlib import Path

import busway.sync
from tests.support.flow import record_stops
from tests.support.mounts import mounted, serving, until

MOST = 80
"""Batches: 80 MB, more than the sockets and the broker's outbox hold together."""


def test_a_mount_that_stands_still_does_not_slow_a_publisher(tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    url = f"unix:{tmp_path}/bus"
    with (
        serving(url),
        mounted("mount", "--url", url, folder=place) as mount,
        busway.sync.connect(url) as bus,
    ):
        file = place / "topics" / "log"
        file.touch()
        mount.process.send_signal(signal.SIGSTOP)
        try:
            stops = record_stops(bus._inner)
            for _ in range(MOST):
                bus.publish_many("log", ["." * 1000] * 1000)
            bus.flush(60)
            assert stops == []
        finally:
            mount.process.send_signal(signal.SIGCONT)
        until(lambda: int(os.getxattr(file, "user.busway.missed")) > 0, "the attribute counts what was missed")
