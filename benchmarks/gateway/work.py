"""The works: how many messages pass, how long acknowledgements take at half of that, and what one client that never reads does to others."""

import threading
from collections.abc import Sequence
from typing import Any, Self

from msgspec.structs import replace

from benchmarks.peers.process import PATIENCE, Process

from .plan import Crowd, Plan
from .servers import Stage, stage

Values = dict[str, float]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": ("echo", {}),
    "share": ("gateway", {"work": "share"}),
    "quiet": ("gateway", {"work": "share", "ack": False}),
    "fan": ("gateway", {"work": "fan"}),
}
"""Server and plan of each way: the echo, and three of the gateway."""
PACED = ("echo", "share", "fan")
"""Those of which the time of answers is taken, at half of their rates; of the echo that of the echoes, to compare with."""
_LOOK = 0.05


def rates(plan: Plan, depths: Sequence[int], rounds: int) -> dict[str, list[Values]]:
    """Each way with each depth, all of them in turn in every round; and at half of what that reached the time of acknowledgements."""
    found: dict[str, list[Values]] = {way: [] for way in (*WAYS, *(f"paced_{way}" for way in PACED))}
    with stage("echo", "gateway") as made:
        for turn in range(rounds):
            for depth in depths:
                for way in WAYS:
                    values = _run(made, way, replace(plan, depth=depth, name=f"{way}{turn}x{depth}"))
                    found[way].append({"depth": depth, "round": turn} | values)
                for way in PACED:
                    half = found[way][-1]["rate"] / 2
                    kind, more = WAYS[way]
                    published = half / replace(plan, kind=kind, **more).share
                    paced = replace(plan, depth=depth, rate=published, name=f"paced{way}{turn}x{depth}")
                    found[f"paced_{way}"].append(
                        {"depth": depth, "round": turn, "asked": half} | _run(made, way, paced)
                    )
    return found


def _run(made: Stage, way: str, plan: Plan) -> Values:
    kind, more = WAYS[way]
    return made.run(kind, replace(plan, **more))


def stuck(plan: Crowd, rounds: int) -> list[Values]:
    """A thousand subscribers, first among themselves, then with one that never reads."""
    return [_stuck(plan) for _ in range(rounds)]


def _stuck(plan: Crowd) -> Values:
    values: Values = {"clients": plan.clients, "size": plan.size, "rate": plan.rate * plan.channels}
    with stage("gateway") as made:
        server = made.servers["gateway"]
        values["memory_empty"] = server.memory()
        with made.crowd("crowd", replace(plan, port=server.port)) as process:
            _phase(process, "go", plan)  # what it needs once, it has from then on
            for name, word in (("without", "go"), ("with", "stick")):
                values[f"memory_before_{name}"] = server.memory()
                with Peak(server) as peak:
                    seen = _phase(process, word, plan)
                values |= {f"{key}_{name}": value for key, value in seen.items()} | {f"memory_{name}": peak.most}
    return values


def _phase(process: Process, word: str, plan: Crowd) -> Values:
    process.say(word)
    return process.hear("due", 2 * plan.seconds + PATIENCE)


class Peak:
    """The most memory that a process has while this is entered."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            self.most = max(self.most, self._process.memory())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self.most = max(self.most, self._process.memory())
