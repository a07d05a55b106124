"""Work on stored messages, asked of Busway, NATS JetStream and Redis Streams in the same way.

One process stores, reads or takes. A publish counts when it is acknowledged, and at its end the broker is asked how many
messages it has; reading and taking are timed from the first question to the last message, or its acknowledgement.
"""

from msgspec.structs import replace

from .load import Load
from .process import Stage, stage
from .work import Values, Work

LIMIT = 300
"""Seconds for the slowest system to store, read or take everything."""
DATA = "data"


def written(name: str, load: Load) -> Values:
    """Store with 256 in flight; acknowledged is what the operating system has."""
    return _append(name, replace(load, safety="written"))


def synced(name: str, load: Load) -> Values:
    """Store with 256 in flight; acknowledged is what the disk has."""
    return _append(name, replace(load, safety="synced"))


def catchup(name: str, load: Load) -> Values:
    """Read everything that is stored."""
    return _consume(name, load, "catch_up", load.messages)


def take(name: str, load: Load) -> Values:
    """Take everything that is stored, 256 at a time, and acknowledge it."""
    return _consume(name, load, "take", load.messages // 5)


def _append(name: str, load: Load) -> Values:
    load = replace(load, data=DATA)
    with stage(name, load) as on:
        publisher = on.start("append", replace(load, url=on.url))
        publisher.hear("ready", 30)
        cpu = on.broker.cpu()
        publisher.say("go")
        sent = publisher.hear("acknowledged", load.seconds + 60)
        cpu = on.broker.cpu() - cpu
        kept = publisher.hear("stored", 60)
        return {
            "rate": sent["rate"],
            "acknowledged": sent["acknowledged"],
            "lost": sent["acknowledged"] - kept["stored"],
            **_costs(on, cpu, sent["cpu"], sent["acknowledged"]),
        }


def _consume(name: str, load: Load, role: str, count: int) -> Values:
    load = replace(load, data=DATA, messages=count)
    with stage(name, load) as on:
        load = replace(load, url=on.url)
        on.start("fill", load).hear("filled", LIMIT)
        consumer = on.start(role, load)
        consumer.hear("ready", 30)
        cpu = on.broker.cpu()
        consumer.say("go")
        got = consumer.hear("received", LIMIT)
        return {
            "rate": got["received"] / got["elapsed"],
            "received": got["received"],
            "lost": count - got["received"] + got["left"],
            **_costs(on, on.broker.cpu() - cpu, got["cpu"], got["received"]),
        }


def _costs(on: Stage, broker: float, client: float, count: int) -> Values:
    return {
        "broker_cpu_per_million": broker / count * 1e6,
        "client_cpu_per_million": client / count * 1e6,
        "broker_memory": on.broker.memory(),
    }


STORED: dict[str, Work] = {"written": written, "synced": synced, "catchup": catchup, "take": take}
