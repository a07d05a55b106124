"""What one stream of Busway bears: how fast it is appended to and read, and what it costs to have a long one.

Only Busway does it. The log alone is measured in this process, the rest over TCP on a real broker.
"""

import shutil
import time
from pathlib import Path

from msgspec.structs import replace

from benchmarks.log import anonymous, append, prepared, rates
from busway._core import Log
from busway.broker.streams.folder import LOG
from busway.broker.streams.manager import FOLDER

from .load import Load
from .process import Process, ProcessError, Stage, stage
from .stored import DATA, LIMIT
from .systems.busway_streams import STREAM
from .work import Values, Work

GIB = 1 << 30
SPARE = 4 * GIB
"""Bytes of the disk that stay free."""
FEW = 100_000
"""Messages of the stream that the long one is compared with; so many are also read before memory is looked at."""


def stream(name: str, load: Load) -> Values:
    """Append in batches and read to Arrow: the log alone, and over a broker."""
    with stage(name, replace(load, data=DATA)) as on:
        load = replace(load, url=on.url)
        filled = on.start("fill", load).hear("filled", LIMIT)
        values = {"append": filled["filled"] / filled["elapsed"]}
        for mode in ("arrow", "payload"):
            got = _read(on.start("arrow", replace(load, mode=mode)))
            if got["received"] != load.messages:
                raise ProcessError(f"{got['received']} of {load.messages} messages were read to Arrow")
            values[mode] = got["received"] / got["elapsed"]
    alone = rates(load.messages)
    return values | {f"log_{what}": rate for what, rate in alone.items()}


def long(name: str, load: Load) -> Values:
    """A stream of `load.gib` GiB: how long the broker takes to open it, after a stop and a kill, and its memory."""
    load = replace(load, data=DATA)
    with stage(name, load) as on:
        few = replace(load, url=on.url, messages=FEW, mode="subscribe")
        on.start("fill", few).hear("filled", LIMIT)
        on.broker.stop()
        on.start_broker()
        short = _memory(on, few)
        on.broker.stop()
        _grow(on.folder / DATA / FOLDER / STREAM / LOG, load.gib)
        on.start_broker()
        opened = on.broker.hear("opened", 60)["opened"]
        after = _memory(on, few)
        size = on.start("fill", few).hear("filled", LIMIT)["bytes"]
        on.broker.kill()
        on.start_broker()
        return {
            "gib": size / GIB,
            "opened": opened,
            "opened_killed": on.broker.hear("opened", 60)["opened"],
            "memory_short": short,
            "memory_long": after,
            "memory_growth": after - short,
        }


def _read(reader: Process) -> Values:
    reader.hear("ready", 30)
    reader.say("go")
    return reader.hear("received", LIMIT)


def _memory(on: Stage, load: Load) -> int:
    """The broker's, after somebody has read the beginning of the stream."""
    _read(on.start("catch_up", load))
    return on.broker.memory()


def _grow(folder: Path, gib: float) -> None:
    """Append until the log of a broker that is not there has this size, or the disk would be full."""
    blocks = anonymous(prepared(FEW))
    wanted = min(gib * GIB, shutil.disk_usage(folder).free - SPARE)
    log = Log.open(folder, name=STREAM, max_age=0, pending_bytes=64 << 20)
    while log.usage[0] < wanted:
        append(log, blocks, time.time_ns())
    log.close()


LONG: dict[str, Work] = {"stream": stream, "long": long}
