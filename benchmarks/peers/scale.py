"""Work that shows how Busway bears numbers and a stuck subscriber.

Only Busway does it: the other systems differ too much in what they promise here for one table.
"""

import signal
import time
from itertools import pairwise

from msgspec.structs import replace

from benchmarks.rules import costs

from .load import Load
from .process import Process, Stage, stage
from .work import SETTLE, Values, Work, deliver_on, finish

SUBSCRIPTIONS = 100_000
RULES = 10_000
CONNECTIONS = 5_000
TOPICS = 1_000


def subscriptions(name: str, load: Load) -> Values:
    """100,000 wildcard subscriptions: memory of each, and the rate to one matching subscriber with and without them."""
    with stage(name, load) as on:
        load = replace(load, url=on.url, topic="line/speed")
        one = _rates(on, load)
        holder = on.start("hold", replace(load, count=SUBSCRIPTIONS))
        holder.hear("ready", 30)
        memory = on.broker.memory()
        holder.say("go")
        holder.hear("held", 120)
        memory = on.broker.memory() - memory
        many = _rates(on, load)
        return {
            "bytes_each": memory / SUBSCRIPTIONS,
            "rate_with_one": one[0],
            "rate_with_many": many[0],
            "rate_with_one_many_topics": one[1],
            "rate_with_many_many_topics": many[1],
            "kept": min(many[0] / one[0], many[1] / one[1]),
        }


def _rates(on: Stage, load: Load) -> tuple[float, float]:
    """Messages a second to one subscriber with a wildcard, on one topic and spread over many."""
    one = deliver_on(on, load, subscribers=1, copies=1, pattern="line/**")
    many = deliver_on(on, replace(load, count=TOPICS), subscribers=1, copies=1, pattern="line/**")
    return one["rate"], many["rate"]


def rules(name: str, load: Load) -> Values:
    """10,000 subscriptions on one topic with rules on three fields, of which one matches; and what single rules cost."""
    with stage(name, load) as on:
        fields = {"venue": "krk", "symbol": "ETH-EUR", "side": "buy"}
        load = replace(load, url=on.url, topic="price/eth", fields=fields)
        one = deliver_on(on, load, subscribers=1, copies=1)["rate"]
        holder = on.start("hold", replace(load, count=RULES))
        holder.hear("ready", 30)
        holder.say("go")
        holder.hear("held", 120)
        many = deliver_on(on, load, subscribers=1, copies=1)["rate"]
        cost = costs(20_000)
        return {
            "rate_with_one": one,
            "rate_with_many": many,
            "kept": many / one,
            "glob": cost["glob"],
            "list": cost["one of 1,000"],
            "cel": max(value for what, value in cost.items() if what.startswith("CEL")),
        }


def idle(name: str, load: Load) -> Values:
    """5,000 connections that do nothing: the broker's memory for each."""
    with stage(name, load) as on:
        crowd = on.start("idle", replace(load, url=on.url, count=CONNECTIONS))
        crowd.hear("ready", 30)
        memory = on.broker.memory()
        crowd.say("go")
        crowd.hear("held", 120)
        return {"bytes_each": (on.broker.memory() - memory) / CONNECTIONS}


def slow(name: str, load: Load) -> Values:
    """A subscriber is stopped under full load: the broker's memory, the others' rate, and whether it is told the truth."""
    before, stopped, after = load.seconds, 4 * load.seconds, load.seconds / 2
    with stage(name, load) as on:
        load = replace(load, url=on.url, seconds=before + stopped + after)
        others = [on.start("subscribe", load) for _ in range(2)]
        victim = on.start("subscribe", load)
        publisher = on.start("publish", load)
        for process in (*others, victim, publisher):
            process.hear("ready", 30)
        time.sleep(SETTLE)
        publisher.say("go")
        begin = time.monotonic()
        time.sleep(before)
        memory = on.broker.memory()
        victim.send_signal(signal.SIGSTOP)
        stop = time.monotonic()
        most = _most_memory(on.broker, stop + stopped)
        victim.send_signal(signal.SIGCONT)
        again = time.monotonic()
        published = publisher.hear("published", load.seconds + 60)["published"]
        got = finish([*others, victim], published * 3)
        told = got[2]
        return {
            "rate_before": sum(_rate(one["samples"], begin + load.warm, stop) for one in got[:2]) / 2,
            "rate_during": sum(_rate(one["samples"], stop, again) for one in got[:2]) / 2,
            "memory_growth": most - memory,
            "published": published,
            "others_lost": 2 * published - got[0]["received"] - got[1]["received"],
            "received": told["received"],
            "missed": told["missed"],
            "miscounted": published - told["received"] - told["missed"],
        }


def _most_memory(broker: Process, until: float) -> int:
    most = 0
    while time.monotonic() < until:
        most = max(most, broker.memory())
        time.sleep(0.05)
    return most


def _rate(samples: list[tuple[float, int]], begin: float, end: float) -> float:
    """Messages a second between two moments, by a receiver's own samples."""
    return (_count_at(samples, end) - _count_at(samples, begin)) / (end - begin)


def _count_at(samples: list[tuple[float, int]], moment: float) -> float:
    for (t0, c0), (t1, c1) in pairwise(samples):
        if t0 <= moment <= t1:
            return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)
    return samples[-1][1] if moment > samples[-1][0] else samples[0][1]


SCALE: dict[str, Work] = {"subscriptions": subscriptions, "rules": rules, "idle": idle, "slow": slow}
