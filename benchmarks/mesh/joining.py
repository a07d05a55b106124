"""How soon a node that comes newly knows what the clients of another one want.

It is looked from outside, by asking the new node for its counters again and again: it knows when it counts them all, and a message to one of
them goes there.
"""

import time

import busway.sync
from benchmarks.peers.load import Load
from benchmarks.peers.process import PATIENCE, ProcessError

from .nodes import Mesh

SUBSCRIPTIONS = 100_000
Values = dict[str, float]


def joins(rounds: int, subscriptions: int = SUBSCRIPTIONS) -> list[Values]:
    """Seconds until a new node knows, from the moment when its link is up, when it listens, and when its process is started."""
    with Mesh() as made:
        [old] = made.add()
        old.wait_until_ready()
        holder = made.client("hold", Load(old.url, count=subscriptions))
        holder.hear("ready", PATIENCE)
        holder.say("go")
        holder.hear("held", 2 * PATIENCE)
        found = []
        for _ in range(rounds):
            found.append(_join(made, subscriptions))
            made.nodes.pop().kill()
        return found


def _join(made: Mesh, subscriptions: int) -> Values:
    old = made.nodes[0]
    [new] = made.add()
    ready = new.wait_until_ready()
    end = time.monotonic() + PATIENCE
    with busway.sync.connect(new.url, timeout=PATIENCE, reconnect=None) as bus:
        while bus.request("$bus/info", timeout=PATIENCE).json()["stats"]["subscriptions"] < subscriptions:
            if time.monotonic() > end:
                new.fail(f"does not know of {subscriptions} subscriptions after {PATIENCE:g} s")
            time.sleep(0.002)
        known, moment = time.monotonic(), time.time()
        got = bus.publish(f"plant/{subscriptions - 1}/1/temperature", b"", confirm=True)
    if got != 1:
        raise ProcessError(
            f"{new.name} knows of all subscriptions, and a message to one of them went to {got} connections"
        )
    return {
        "subscriptions": subscriptions,
        "from_link": moment - new.link(old)["since"],
        "from_ready": known - new.begun - ready,
        "from_start": known - new.begun,
    }
