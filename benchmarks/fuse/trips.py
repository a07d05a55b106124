"""How long a message takes from a file to a native subscriber, beside one that a native client publishes.

Started as `python -m benchmarks.fuse.trips PLAN`. One message is under way at a time; both ends of it are in this process, so one clock is
enough.
"""

import os
import struct
import sys
from functools import partial
from pathlib import Path

import msgspec

import busway
from benchmarks.peers.role import Control, run
from benchmarks.trips import Trip, p50s

from .pairs import MESSAGE
from .plan import CHANNEL, Trips


async def measure(control: Control, plan: Trips) -> None:
    """Take both ways in turn, and tell the p50 of each in each round, in microseconds."""
    folder, payload = Path(plan.folder), b"x" * plan.size
    with (folder / "channels").open("a") as file:
        file.write(CHANNEL + "\n")
    number = (folder / "channels").read_text().split("\n").index(CHANNEL)
    end = os.open(folder / "fusebus", os.O_RDWR)
    message = struct.pack("@QQ", MESSAGE, number) + payload
    async with busway.connect(plan.url) as source, busway.connect(plan.url) as target, target.subscribe(CHANNEL) as at:
        ways: dict[str, Trip] = {"file": partial(_from_file, end, message, at)}
        ways["native"] = partial(_native, source, payload, at)
        rounds = await p50s(ways, plan.messages, plan.rounds)
    control.tell(rounds=rounds)


async def _from_file(end: int, message: bytes, at: busway.Subscription) -> None:
    os.write(end, message)
    await at.recv()


async def _native(source: busway.Bus, payload: bytes, at: busway.Subscription) -> None:
    await source.publish(CHANNEL, payload)
    await at.recv()


def main() -> None:
    control = Control()
    run(control, measure(control, msgspec.json.decode(sys.argv[1], type=Trips)))


if __name__ == "__main__":
    main()
