"""Publish and read, one after the other: two open files of each file system, in one process that does nothing else.

Started as `python -m benchmarks.fuse.pairs PLAN`. It knows the formats of the two files and nothing of Busway, so what is timed are the system
calls, the kernel and the file system.
"""

import os
import select
import struct
import sys
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.peers.role import Control

from .plan import CHANNEL, Pairs

SUBSCRIBE, MESSAGE = 0, 2
META = 40
ALIGN = 16
STEP = 32
"""Calls between two looks at the clock."""
WARM = 0.2


class Ends:
    """One file that publishes and one that reads."""

    def __init__(self, name: str, folder: Path) -> None:
        self._bare = name == "plain"
        self._publisher = os.open(folder / "fusebus", os.O_RDWR)
        self._reader = os.open(folder / "fusebus", os.O_RDWR)
        self._channel = 0 if self._bare else self._register(folder / "channels")
        self._subscribe()

    def _register(self, channels: Path) -> int:
        with channels.open("a") as file:
            file.write(CHANNEL + "\n")
        return channels.read_text().split("\n").index(CHANNEL)

    def _subscribe(self) -> None:
        if not self._bare:
            os.write(self._reader, struct.pack("@Q", SUBSCRIBE) + CHANNEL.encode())
            self._begin_anew()

    def _message(self, size: int) -> bytes:
        return struct.pack("@QQ", MESSAGE, self._channel) + b"x" * size

    def pairs(self, size: int, seconds: float) -> float:
        """So many a second; every message is read before the next is written."""
        message, whole = self._message(size), META + (size + ALIGN - 1) // ALIGN * ALIGN
        publisher, reader, room = self._publisher, self._reader, META + size + ALIGN
        write, read = os.write, os.read
        done, begin = 0, perf_counter()
        while (now := perf_counter()) - begin < seconds or not done:
            for _ in range(STEP):
                write(publisher, message)
                if len(read(reader, room)) != whole:
                    raise RuntimeError(f"a message of {size} bytes did not come back whole")
            done += STEP
        return done / (now - begin)

    def publishes(self, size: int, seconds: float) -> float:
        """So many a second, which nobody reads meanwhile."""
        message, publisher, write = self._message(size), self._publisher, os.write
        done, begin = 0, perf_counter()
        while (now := perf_counter()) - begin < seconds or not done:
            for _ in range(STEP):
                write(publisher, message)
            done += STEP
        self._begin_anew()
        return done / (now - begin)

    def _begin_anew(self) -> None:
        """Pass over what is kept: history, or what was published for nobody."""
        while select.select([self._reader], [], [], 0)[0] and os.read(self._reader, 1 << 20):
            pass


def measure(plan: Pairs) -> list[dict[str, float]]:
    """Of each round and size: pairs and publishes a second, `pairs_plain` and so on."""
    ends = {name: Ends(name, Path(folder)) for name, folder in plan.mounts.items()}
    for one in ends.values():
        one.pairs(plan.sizes[0], min(WARM, plan.seconds))
    return [_round(plan, ends, turn, size) for turn in range(plan.rounds) for size in plan.sizes]


def _round(plan: Pairs, ends: dict[str, Ends], turn: int, size: int) -> dict[str, float]:
    found: dict[str, float] = {"round": turn, "size": size}
    for what in ("pairs", "publishes"):
        rates: dict[str, list[float]] = {name: [] for name in ends}
        for _ in range(plan.turns):
            for name, one in ends.items():
                rates[name].append(getattr(one, what)(size, plan.seconds / plan.turns))
        found |= {f"{what}_{name}": sum(each) / len(each) for name, each in rates.items()}
    return found


def main() -> None:
    control = Control()
    control.tell(rounds=measure(msgspec.json.decode(sys.argv[1], type=Pairs)))


if __name__ == "__main__":
    main()
