"""What Busway is meant to reach, as ratios within one run, and whether it did."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median, median_low

import msgspec

from .load import Sample

MIB = 1 << 20


class Goal(msgspec.Struct, frozen=True):
    """One figure with its bar."""

    what: str
    value: float
    bar: float
    at_least: bool
    unit: str = "x"

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


class Medians:
    """Medians over the repeats."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def get(self, work: str, system: str, value: str) -> float:
        """Raises KeyError if that was not measured."""
        found = [s.values[value] for s in self._samples if s.work == work and s.system == system and value in s.values]
        if not found:
            raise KeyError((work, system, value))
        return median(found)

    def ratio(self, work: str, value: str, ours: str, theirs: str) -> float:
        """The median of what ours is of theirs in each repeat: a slow minute hits both sides of a ratio alike."""
        each = [
            {
                s.repeat: s.values[value]
                for s in self._samples
                if (s.work, s.system) == (work, system) and value in s.values
            }
            for system in (ours, theirs)
        ]
        if not each[0].keys() & each[1].keys():
            raise KeyError((work, ours, theirs, value))
        return median(each[0][repeat] / each[1][repeat] for repeat in each[0].keys() & each[1].keys())

    def best(self, work: str, value: str, ours: str, *theirs: str) -> float:
        """As ratio(), but of the best way of ours to the best of all of theirs; every one of them has to be there."""
        each: dict[str, dict[int, float]] = {name: {} for name in (ours, *theirs)}
        for sample in self._samples:
            name = sample.system.partition(" ")[0]
            if sample.work == work and name in each:
                before = each[name].get(sample.repeat, 0.0)
                each[name][sample.repeat] = max(before, sample.values[value])
        repeats = set.intersection(*(set(found) for found in each.values()))
        if not repeats:
            raise KeyError((work, ours, theirs, value))
        return median(each[ours][repeat] / max(each[name][repeat] for name in theirs) for repeat in repeats)

    def whole(self, work: str, system: str, value: str) -> dict[str, float]:
        """All figures of one repeat, the one with the median of `value`."""
        found = {s.values[value]: s.values for s in self._samples if s.work == work and s.system == system}
        return found[median_low(found)]

    def systems(self, work: str) -> list[str]:
        return list(dict.fromkeys(sample.system for sample in self._samples if sample.work == work))


def judge(samples: list[Sample]) -> list[Goal]:
    """The goals whose parts were measured in this run."""
    medians = Medians(samples)
    of, ratio = medians.get, medians.ratio
    tcp, single, unix = "busway-tcp batch", "busway-tcp single", "busway-unix batch"

    def stored(work: str) -> float:
        return medians.best(work, "rate", "busway-streams", "jetstream", "redis-streams")

    def rows() -> Iterator[tuple[str, Callable[[], float], float, bool, str]]:
        rate, cpu = "rate", "broker_cpu_per_million"
        yield "batches: rate / ZeroMQ", lambda: ratio("throughput", rate, tcp, "zeromq"), 6, True, "x"
        yield "batches: million messages a second", lambda: of("throughput", tcp, rate) / 1e6, 4, True, "M"
        yield "one by one: rate / ZeroMQ", lambda: ratio("throughput", rate, single, "zeromq"), 3, True, "x"
        yield "one by one: rate / nats-py", lambda: ratio("throughput", rate, single, "nats"), 10, True, "x"
        yield "batches: broker CPU / nats-server", lambda: ratio("throughput", cpu, tcp, "nats"), 1 / 5, False, "x"
        yield (
            "one by one: broker CPU / nats-server",
            lambda: ratio("throughput", cpu, single, "nats"),
            1 / 5,
            False,
            "x",
        )
        yield "batches: broker CPU / ZeroMQ proxy", lambda: ratio("throughput", cpu, tcp, "zeromq"), 1 / 3, False, "x"
        yield (
            "one by one: broker CPU / ZeroMQ proxy",
            lambda: ratio("throughput", cpu, single, "zeromq"),
            1 / 3,
            False,
            "x",
        )
        yield "Unix socket / TCP, batches", lambda: ratio("throughput", rate, unix, tcp), 1, True, "x"
        yield (
            "fan-out to eight: deliveries / ZeroMQ",
            lambda: ratio("fanout", rate, "busway-tcp", "zeromq"),
            3,
            True,
            "x",
        )
        yield "request: p50 / nats-py", lambda: ratio("request", "p50", "busway-tcp", "nats"), 0.6, False, "x"
        yield "request: p99 / nats-py", lambda: ratio("request", "p99", "busway-tcp", "nats"), 0.8, False, "x"
        yield "64 in flight: rate / nats-py", lambda: ratio("inflight", rate, "busway-tcp", "nats"), 2.5, True, "x"
        yield "group of four: rate / nats-py", lambda: ratio("group", rate, "busway-tcp", "nats"), 5, True, "x"
        for work, what, bar in (
            ("written", "durable publish, written", 5),
            ("synced", "durable publish, synced", 5),
            ("catchup", "catching up", 5),
            ("take", "take and acknowledge", 3),
        ):
            yield f"{what}: rate / the better of JetStream and Redis", partial(stored, work), bar, True, "x"
        streams = "busway-streams"
        yield (
            "one stream: million appended a second, log",
            lambda: of("stream", streams, "log_append") / 1e6,
            1.5,
            True,
            "M",
        )
        yield "one stream: million read to Arrow, log", lambda: of("stream", streams, "log_arrow") / 1e6, 5, True, "M"
        yield (
            "long stream: seconds to open, the slower of two",
            lambda: max(of("long", streams, "opened"), of("long", streams, "opened_killed")),
            2,
            False,
            "s",
        )
        yield (
            "long stream: broker memory, MiB more than with a short one",
            lambda: of("long", streams, "memory_growth") / MIB,
            16,
            False,
            "MiB",
        )
        yield (
            "bytes of a wildcard subscription",
            lambda: of("subscriptions", "busway-tcp", "bytes_each"),
            400,
            False,
            "B",
        )
        yield "rate kept with 100,000 of them", lambda: of("subscriptions", "busway-tcp", "kept"), 0.8, True, "x"
        yield "rate kept with 10,000 rules on three fields", lambda: of("rules", "busway-tcp", "kept"), 0.5, True, "x"
        yield "a glob, ns", lambda: of("rules", "busway-tcp", "glob"), 1000, False, "ns"
        yield "a list of 1,000, ns", lambda: of("rules", "busway-tcp", "list"), 1000, False, "ns"
        yield "the dearest CEL expression, ns", lambda: of("rules", "busway-tcp", "cel"), 10_000, False, "ns"
        yield "KiB of an idle connection", lambda: of("idle", "busway-tcp", "bytes_each") / 1024, 16, False, "KiB"
        yield (
            "stuck subscriber: broker memory, MiB",
            lambda: of("slow", "busway-tcp", "memory_growth") / MIB,
            16,
            False,
            "MiB",
        )
        yield (
            "stuck subscriber: others keep",
            lambda: of("slow", "busway-tcp", "rate_during") / of("slow", "busway-tcp", "rate_before"),
            0.9,
            True,
            "x",
        )
        yield (
            "stuck subscriber: messages it was not told of",
            lambda: max(abs(s.values["miscounted"]) for s in samples if s.work == "slow"),
            0,
            False,
            "",
        )

    goals = []
    for what, value, bar, at_least, unit in rows():
        try:
            goals.append(Goal(what, value(), bar, at_least, unit))
        except (KeyError, ValueError):  # not part of this run
            continue
    return goals
