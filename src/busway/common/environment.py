"""What a bus takes from outside: clocks, chance, and the disk of its logs. In one place, so that a simulation can put its own there.

Whoever needs one of these looks it up here at every call (`ambient.time_ns()`), which costs what `time.time_ns()` costs.
The engine's clock is held by `_core.hold_clock()`.
"""

import os
import random as _random
import secrets
import time as _time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from busway._core import Log


def _disk_space(folder: Path) -> tuple[int, int]:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


time_ns: Callable[[], int] = _time.time_ns
"""Nanoseconds since 1970."""
monotonic: Callable[[], float] = _time.monotonic
"""Seconds of a clock that nobody sets."""
boottime: Callable[[], float] = (
    partial(_time.clock_gettime, _time.CLOCK_BOOTTIME) if hasattr(_time, "CLOCK_BOOTTIME") else _time.monotonic
)
"""The same, but it also runs while the host sleeps, where there is such a clock."""
perf_counter: Callable[[], float] = _time.perf_counter
"""Seconds of the finest clock, for measuring."""
chance: Callable[[], float] = _random.random
"""A number from 0 to 1, to spread things."""
randbits: Callable[[int], int] = secrets.randbits
"""So many bits that nobody can guess."""
open_log: Callable[..., Log] = Log.open
"""Open the log in a folder, or in memory."""
open_front: Callable[..., Log] = Log.front
"""The front of a log that somebody else stores."""
disk_space: Callable[[Path], tuple[int, int]] = _disk_space
"""Bytes that are free on the disk of a folder, for a user other than root, and the size of the disk."""
drop_log: Callable[[Path], object] = lambda folder: None  # noqa: E731, ARG005
"""The folder of a log, which is closed, is gone from its place: nothing is to be done where the log lies in the folder itself."""
