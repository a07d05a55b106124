"""The works: pairs and publishes a second, as the system places the processes and all on one core; and the way to a native subscriber."""

import os
from collections.abc import Sequence

from .mounts import stage
from .plan import Pairs, Trips

Values = dict[str, float]


def pairs(sizes: Sequence[int], rounds: int, seconds: float) -> list[Values]:
    """Both file systems in turn, from one process with two open files of each."""
    with stage() as made:
        mounts = {name: str(made.mount(name).place) for name in ("plain", "busway")}
        plan = Pairs(mounts=mounts, sizes=list(sizes), rounds=rounds, seconds=seconds)
        return made.run("pairs", plan, 4 * seconds * rounds * len(sizes))


def one_core(sizes: Sequence[int], rounds: int, seconds: float) -> list[Values]:
    """The same with every process on one core: a wake-up on another one costs more than all the rest, and who pays it is luck."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return pairs(sizes, rounds, seconds)
    finally:
        os.sched_setaffinity(0, allowed)


def trips(size: int, messages: int, rounds: int) -> list[Values]:
    """The p50 from a file and from a native publisher to a native subscriber, in microseconds."""
    with stage() as made:
        url = made.bus()
        mounted = made.mount("busway", "mount", "--url", url)
        plan = Trips(folder=str(mounted.place), url=url, size=size, messages=messages, rounds=rounds)
        return made.run("trips", plan, rounds * messages * 0.01)
