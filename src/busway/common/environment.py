"""The outside world of a bus: clocks, random numbers and the disk of its logs. A simulation replaces these functions.

Code looks each function up in this module at every call (`environment.time_ns()`), which costs as much as
`time.time_ns()`. The engine has its own clock, which `_core.hold_clock()` stops.
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
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize


time_ns: Callable[[], int] = _time.time_ns
"""Nanoseconds since 1970."""
monotonic: Callable[[], float] = _time.monotonic
"""Seconds of a clock that is never set."""
boottime: Callable[[], float] = (
    partial(_time.clock_gettime, _time.CLOCK_BOOTTIME) if hasattr(_time, "CLOCK_BOOTTIME") else _time.monotonic
)
"""Seconds of a clock that also runs while the host sleeps; `monotonic` on systems without such a clock."""
perf_counter: Callable[[], float] = _time.perf_counter
"""Seconds of the clock with the highest resolution, to measure durations."""
chance: Callable[[], float] = _random.random
"""A random number from 0 to 1, for jitter."""
randbits: Callable[[int], int] = secrets.randbits
"""A number of that many random bits, for secrets and ids."""
open_log: Callable[..., Log] = Log.open
"""Open the log in a folder, or in memory."""
open_front: Callable[..., Log] = Log.front
"""Open the write buffer of a log that a database stores."""
disk_space: Callable[[Path], tuple[int, int]] = _disk_space
"""Bytes that a user other than root can use on the disk of a folder, and the size of the disk."""
drop_log: Callable[[Path], object] = lambda folder: None  # noqa: E731, ARG005
"""Called after the folder of a closed log was removed. A simulated disk drops the log; a real disk does nothing."""
move_log: Callable[[Path, Path], object] = lambda folder, place: None  # noqa: E731, ARG005
"""Called after the folder of a closed log was moved. A simulated disk moves the log; a real disk does nothing."""
