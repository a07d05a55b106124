"""Checks the guarantees of a cluster: nodes agree, and keep the guarantees of a single broker; cluster runs call it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.checker.single import acknowledged, in_order, kept, once
from tests.simulation.workload.cluster_client import Member
from tests.simulation.workload.history import History, Key, payload


@dataclass(slots=True)
class ClusterState:
    """The final state that clients see, by node."""

    posts: dict[str, dict[str, int]] = field(default_factory=dict)
    pins: dict[str, dict[str, int]] = field(default_factory=dict)
    known: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """The node of each program, and the posts and pins that it knows."""
    stored: dict[str, list[tuple[int, Key]]] = field(default_factory=dict)
    """Offsets and messages in each node's own stream."""
    guids: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The faults and programs of a run that determine the expected state."""

    living: list[str]
    """Programs that were not killed."""
    readers: list[str]
    """Living programs that read stored messages."""
    single_broker: frozenset[str]
    """Programs that used one broker only. Other programs may have resent unconfirmed messages to another broker."""
    orphans: frozenset[str]
    """Programs that used a lost node. Only that node had the messages that it confirmed while it was isolated."""
    calm: bool
    """No fault took effect."""
    refused: bool
    """A disk has failed; see `FinalState.refused`."""
    forgotten: bool
    """A node without storage was restarted."""
    forgetful: frozenset[str]
    """Guids of nodes that have lost written data. Channel progress does not wait for a mirror."""


def agree(ledger: History, seen: ClusterState, facts: RunFacts) -> Iterator[str]:
    """Yield a sentence for each violated guarantee."""
    for program, keys in ledger.live.items():
        yield from in_order(f"live messages of {program}", keys)
        yield from _in_scope(ledger, program, keys)
    for program, keys in ledger.followed.items():
        yield from _ordered(f"durable messages that {program} followed", keys, facts)
    yield from once("job for a group", (key for _, key in ledger.shared))
    if facts.calm:
        yield from once("push", (key for _, key in ledger.taken))
        for key in sorted(ledger.pushed - {key for _, key in ledger.taken}):
            yield f"push {payload(key)} was accepted, but no consumer has it"
    yield from _kept(ledger, seen, facts)
    yield from _stored(ledger, seen, facts)
    yield from _read(ledger, seen, facts)
    if not facts.forgotten:
        yield from acknowledged(ledger, Member.lease, facts.forgetful)


def _read(ledger: History, seen: ClusterState, facts: RunFacts) -> Iterator[str]:
    """Check that readers got the messages of each node once and in order, and living readers all of them."""
    names = {guid: name for name, guid in seen.guids.items()}
    for program, got in ledger.history.items():
        for guid in dict.fromkeys(broker for broker, _, _ in got):
            offsets = [offset for broker, offset, _ in got if broker == guid]
            if any(second <= first for first, second in pairwise(offsets)):
                yield f"{program} read of {names.get(guid, guid)} offsets in this order: {offsets}"
    for program, name in ((program, name) for program in facts.readers for name in seen.guids):
        mine = [(offset, key) for broker, offset, key in ledger.history[program] if broker == seen.guids[name]]
        if mine != seen.stored[name]:
            missing = [payload(key) for offset, key in seen.stored[name] if (offset, key) not in mine]
            yield f"{program} read {len(mine)} of {len(seen.stored[name])} stored messages of {name}, without {missing[:5]}"


def _in_scope(ledger: History, program: str, keys: list[Key]) -> Iterator[str]:
    here = program.partition("@")[2]
    for key in keys:
        scope, there = ledger.scoped.get(key), key[0].partition("@")[2]
        if scope is not None and (scope == "local") != (here == there):
            yield f"{program} got {payload(key)}, which had the scope {scope}"


def _ordered(what: str, keys: list[Key], facts: RunFacts) -> Iterator[str]:
    """Check that messages of programs with one broker come once and in order."""
    mine = [key for key in keys if key[0] in facts.single_broker]
    if facts.refused:
        yield from once(what, mine)
    else:
        yield from in_order(what, mine)


def _kept(ledger: History, seen: ClusterState, facts: RunFacts) -> Iterator[str]:
    for what, there in (("posts", seen.posts), ("pins", seen.pins)):
        first = next(iter(there), "")  # empty if the survey failed early
        for name in there:
            if there[name] != there[first]:
                yield f"{what} at {name} are {there[name]}, and at {first} {there[first]}"
    for name, posts in seen.posts.items():
        yield from kept(f"post at {name}", ledger.posts, posts, facts.living)
    for name, pins in seen.pins.items() if not facts.forgotten else ():
        yield from kept(f"pin at {name}", ledger.pins, pins, list(ledger.pins), facts.orphans)
    yield from unknown(seen)


def unknown(seen: ClusterState) -> Iterator[str]:
    """Find programs that know other retained messages than there are."""
    for program, (place, known) in seen.known.items():
        there = {f"status/{name}": number for name, number in seen.posts.get(place, {}).items()}
        there |= {f"config/{name}": number for name, number in seen.pins.get(place, {}).items()}
        if known != there:
            wrong = sorted(topic for topic in known.keys() | there.keys() if known.get(topic) != there.get(topic))
            pairs = {topic: (known.get(topic), there.get(topic)) for topic in wrong}
            yield f"{program} at {place} knows other retained messages than there are: {pairs}"


def _stored(ledger: History, seen: ClusterState, facts: RunFacts) -> Iterator[str]:
    places = {(seen.guids[name], key): offset for name, stored in seen.stored.items() for offset, key in stored}
    for key, (broker, offset) in ledger.stored.items():
        if broker not in seen.guids.values():
            continue  # the broker had no storage
        there = places.get((broker, key))
        if there is None:
            yield f"acknowledged and lost: {payload(key)} at offset {offset}"
        elif there != offset:
            yield f"acknowledged at offset {offset} and found at {there}: {payload(key)}"
    sent = {(name, number) for name, numbers in ledger.sent.items() for number in numbers}
    for name, stored in seen.stored.items():
        keys = [key for _, key in stored]
        yield from once(f"stored message at {name}", keys)
        yield from _ordered(f"stored messages at {name}", keys, facts)
        for key in keys:
            if key not in sent and not key[0].startswith("auditor"):
                yield f"stored, but never sent: {payload(key)}"
    yield from once(
        "message of a program with one broker, at several nodes:",
        (key for _, key in places if key[0] in facts.single_broker),
    )
    warned = ledger.doubtful | facts.single_broker
    yield from once(
        "message at several nodes without the event `doubtful`:", (key for _, key in places if key[0] not in warned)
    )
