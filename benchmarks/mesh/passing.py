"""How many messages pass from a client of one node to clients of another, beside those of one node.

Publisher and subscriber are the fastest of `benchmarks.peers`: `publish_many` and `batches()`. Both ways are taken in turn on the same
two brokers, so that a slow minute of the machine hits both alike.
"""

import time
from typing import Any

from msgspec.structs import replace

from benchmarks.peers.load import Load
from benchmarks.peers.process import PATIENCE, Process
from benchmarks.peers.work import SETTLE, finish

from .nodes import Broker, Mesh, mesh, until

CROWD = 16
Values = dict[str, float]


def rates(load: Load, rounds: int) -> list[Values]:
    """In each round the rate within one node and over a link, and the CPU seconds of the brokers for a million messages."""
    with mesh(2) as made:
        here, there = made.nodes
        return [_round(made, here, there, replace(load, mode="batch")) for _ in range(rounds)]


def _round(made: Mesh, here: Broker, there: Broker, load: Load) -> Values:
    values: Values = {}
    for way, at in (("one", here), ("two", there)):
        cpu = here.cpu() + there.cpu()
        [got], sent = _pass(made, here, at, load, 1)
        cpu = here.cpu() + there.cpu() - cpu
        values |= {
            f"{way}_rate": (got["last_count"] - got["first_count"]) / (got["last"] - got["first"]),
            f"{way}_lost": sent - got["received"],
            f"{way}_broker_cpu_per_million": cpu / got["received"] * 1e6,
        }
    return values


def copies(load: Load) -> Values:
    """Sixteen subscribers behind a link: what crosses it, by its own figures."""
    with mesh(2) as made:
        here, there = made.nodes
        before = here.link(there)
        got, sent = _pass(made, here, there, replace(load, mode="batch"), CROWD)
        after = here.link(there)
        crossed = after["messages_out"] - before["messages_out"]
        return {
            "subscribers": CROWD,
            "published": sent,
            "delivered": sum(one["received"] for one in got),
            "crossed": crossed,
            "bytes_each": (after["bytes_out"] - before["bytes_out"]) / crossed,
        }


def _pass(made: Mesh, here: Broker, at: Broker, load: Load, subscribers: int) -> tuple[list[dict[str, Any]], int]:
    """Publish at one broker to subscribers at one; what each of them got, and how many were published."""
    receivers = [made.client("subscribe", replace(load, url=at.url)) for _ in range(subscribers)]
    publisher = made.client("publish", replace(load, url=here.url))
    for process in (*receivers, publisher):
        process.hear("ready", PATIENCE)
    other = next(node for node in made.nodes if node is not here)
    known = int(at is not here)  # who wants the same adds nothing
    until(
        lambda: here.link(other)["subscriptions"] == known,
        f"{here.name} knows of {known} subscriptions behind its link",
    )
    time.sleep(SETTLE)
    publisher.say("go")
    sent = publisher.hear("published", load.seconds + PATIENCE)["published"]
    got = finish(receivers, sent * subscribers)
    _leave([*receivers, publisher])
    until(lambda: here.link(other)["subscriptions"] == 0, f"{here.name} knows that nobody is left")
    return got, sent


def _leave(clients: list[Process]) -> None:
    for process in clients:
        process.kill()
