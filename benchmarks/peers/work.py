"""The work: what is asked of every system in the same way.

Publisher, broker and each subscriber are processes of their own. The rate is that of the messages which arrived, from
the end of the warm-up to the last one, by the receivers' clocks; every message that was published has to be accounted
for, and what did not arrive is reported as lost.
"""

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from .load import MARK, Load
from .process import Process, Stage, stage

Values = dict[str, float]
Work = Callable[[str, Load], Values]

SETTLE = 0.3
"""Seconds for subscriptions to reach the publisher's side where nothing confirms them (ZeroMQ, zenoh)."""
PATIENCE = 2.0
"""Seconds without any arrival after which the rest counts as lost."""


def throughput(name: str, load: Load) -> Values:
    """One publisher, one subscriber."""
    return deliver(name, load, subscribers=1, copies=1)


def fanout(name: str, load: Load) -> Values:
    """One publisher, eight subscribers that each get everything."""
    return deliver(name, load, subscribers=8, copies=8)


def group(name: str, load: Load) -> Values:
    """One publisher, four members of one group that share the messages."""
    return deliver(name, replace(load, group="workers"), subscribers=4, copies=1)


def request(name: str, load: Load) -> Values:
    """One requester, one responder, one request after the other."""
    return round_trips(name, load, window=1)


def inflight(name: str, load: Load) -> Values:
    """One requester, one responder, 64 requests in flight."""
    return round_trips(name, load, window=64)


def deliver(name: str, load: Load, *, subscribers: int, copies: int) -> Values:
    with stage(name, load) as on:
        return deliver_on(on, load, subscribers=subscribers, copies=copies)


def deliver_on(on: Stage, load: Load, *, subscribers: int, copies: int, pattern: str = "") -> Values:
    """Publish to subscribers on a running broker; `pattern` where they don't subscribe to the very topic."""
    load = replace(load, url=on.url)
    receivers = [on.start("subscribe", replace(load, topic=pattern or load.topic)) for _ in range(subscribers)]
    publisher = on.start("publish", load)
    for process in (*receivers, publisher):
        process.hear("ready", 30)
    time.sleep(SETTLE)
    cpu = on.broker.cpu()
    publisher.say("go")
    sent = publisher.hear("published", load.seconds + 60)
    got = finish(receivers, sent["published"] * copies)
    cpu = on.broker.cpu() - cpu
    arrived = sum(one["received"] for one in got)
    measured = sum(one["last_count"] - one["first_count"] for one in got)
    return {
        "rate": measured / (max(one["last"] for one in got) - min(one["first"] for one in got if one["first"])),
        "published": sent["published"],
        "lost": sent["published"] * copies - arrived,
        "broker_cpu_per_million": cpu / arrived * 1e6,
        "broker_memory": on.broker.memory(),
        "publisher_cpu_per_million": sent["cpu"] / sent["published"] * 1e6,
        "subscriber_cpu_per_million": sum(one["cpu"] for one in got) / arrived * 1e6,
    }


def finish(receivers: list[Process], expected: int) -> list[dict[str, Any]]:
    """Wait until all has arrived, or nothing arrives any more; then stop the receivers and hear what they got."""
    seen, since = -1, time.monotonic()
    nearly = expected - (MARK - 1) * (len(receivers) - 1)  # members of a group don't end on a mark
    while True:
        for process in receivers:
            process.say("count")
        counted = sum(process.hear("counted", 30)["counted"] for process in receivers)
        if counted != seen:
            seen, since = counted, time.monotonic()
        quiet = time.monotonic() - since
        if counted >= expected or (counted >= nearly and quiet > 0.5) or quiet > PATIENCE:
            break
        time.sleep(0.05)
    for process in receivers:
        process.say("stop")
    return [process.hear("received", 30) for process in receivers]


def round_trips(name: str, load: Load, *, window: int) -> Values:
    with stage(name, load) as on:
        load = replace(load, url=on.url, topic="bench/echo", window=window)
        on.start("respond", load).hear("ready", 30)
        requester = on.start("request", load)
        requester.hear("ready", 30)
        time.sleep(SETTLE)
        cpu = on.broker.cpu()
        begin = time.monotonic()
        requester.say("go")
        values = requester.hear("rate", load.seconds + 60)
        elapsed = time.monotonic() - begin
        return {
            **values,
            "broker_cpu_per_million": (on.broker.cpu() - cpu) / (values["rate"] * elapsed) * 1e6,
            "broker_memory": on.broker.memory(),
        }


WORKS: dict[str, Work] = {
    "throughput": throughput,
    "fanout": fanout,
    "request": request,
    "inflight": inflight,
    "group": group,
}
