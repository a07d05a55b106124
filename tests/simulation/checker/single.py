"""Checks the guarantees of a single broker: compares the history of the programs with the final state; runs call it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.workload.history import LEASE, History, Key, RetainedState, payload


@dataclass(slots=True)
class FinalState:
    """The final state, as a client that connects last sees it."""

    stored: list[tuple[int, Key]] = field(default_factory=list)
    """Offsets and messages of the stream."""
    posts: dict[str, int] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)
    broker: str = ""
    """The guid of the broker. A broker without storage has a new one after each start."""
    living: list[str] = field(default_factory=list)
    """Programs that were not killed."""
    begun: int = 1
    """The number of starts of brokers."""
    refused: bool = False
    """A disk has failed. If the refusal was lost, too, the publisher resent a message, which comes after later ones."""
    calm: bool = False
    """No fault took effect."""
    lasting: bool = True
    """Stored messages and pins survive the broker."""


def check(ledger: History, state: FinalState) -> Iterator[str]:
    """Yield a sentence for each violated guarantee."""
    yield from _stored(ledger, state)
    yield from _read(ledger, state)
    if state.lasting or state.begun == 1:
        yield from acknowledged(ledger, LEASE)
    for program, keys in ledger.live.items():
        yield from in_order(f"live messages of {program}", keys)
    yield from once("job for a group", (key for _, key in ledger.shared))
    if state.calm:  # a push goes to another consumer if the connection is lost before the acknowledgement
        yield from once("push", (key for _, key in ledger.taken))
    for key in sorted(ledger.pushed - {key for _, key in ledger.taken}) if state.calm else ():
        yield f"push {payload(key)} was accepted, but no consumer has it"
    yield from kept("post", ledger.posts, state.posts, state.living)
    if state.lasting or state.begun == 1:
        yield from kept("pin", ledger.pins, state.pins, list(ledger.pins))


def _stored(ledger: History, state: FinalState) -> Iterator[str]:
    offsets = {key: offset for offset, key in state.stored}
    for key, (broker, offset) in ledger.stored.items():
        if broker != state.broker:
            continue
        if key not in offsets:
            yield f"acknowledged and lost: {payload(key)} at offset {offset}"
        elif offsets[key] != offset:
            yield f"acknowledged at offset {offset} and found at {offsets[key]}: {payload(key)}"
    yield from once("stored message", (key for _, key in state.stored))
    if not state.refused:
        yield from in_order("stored messages", [key for _, key in state.stored])
    sent = {(name, number) for name, numbers in ledger.sent.items() for number in numbers}
    for _, key in state.stored:
        if key not in sent:
            yield f"stored, but never sent: {payload(key)}"


def _read(ledger: History, state: FinalState) -> Iterator[str]:
    if not state.lasting and state.begun > 1:
        return  # a message that was resent after the loss of the store is another message
    everything = [key for _, key in state.stored]
    for program, keys in ledger.read.items():
        if program in state.living:
            if keys != everything:
                yield f"{program} read {len(keys)} stored messages of {len(everything)}: {_difference(keys, everything)}"
        elif keys != everything[: len(keys)]:
            yield f"{program} read other stored messages before it was killed: {_difference(keys, everything[: len(keys)])}"


def acknowledged(ledger: History, lease: float, forgetful: Collection[str] = ()) -> Iterator[str]:
    """Find messages that a channel delivered after it had confirmed their acknowledgement.

    The nodes with a guid in `forgetful` are excluded.
    """
    for delivered in ledger.delivered:
        if delivered.key[0].rpartition(" at ")[2] in forgetful:
            continue
        when, program = ledger.done.get(delivered.key, (delivered.when, ""))
        # A consumer that counts as dead may still receive it, and a consumer may receive it again after its lease.
        own = delivered.consumer == program and delivered.when < delivered.since + lease
        if delivered.when > when and (own or delivered.since > when):
            yield (
                f"{payload(delivered.key)} was delivered to {delivered.consumer} at {delivered.when:.3f} s, "
                f"but {program} had acknowledged it at {when:.3f} s"
            )


def once(what: str, keys: Iterable[Key]) -> Iterator[str]:
    """Find duplicates."""
    for key, count in Counter(keys).items():
        if count > 1:
            yield f"{what} {payload(key)}: {count} times"


def in_order(what: str, keys: list[Key]) -> Iterator[str]:
    """Find messages that come after a later one of the same publisher, or again."""
    last: dict[str, int] = defaultdict(int)
    for name, number in keys:
        if number <= last[name]:
            yield f"{what}: {payload((name, number))} came after {last[name]}"
        last[name] = number


def kept(
    what: str,
    retained: dict[str, RetainedState],
    there: dict[str, int],
    expected: list[str],
    orphans: Collection[str] = (),
) -> Iterator[str]:
    """Check that the last retained message of each expected program is there, and none of others.

    A retained message of `orphans` may be missing.
    """
    for name in there:
        if name not in expected:
            yield f"the {what} of {name} is still there"
    for name, own in retained.items():
        if name not in expected or name in orphans:
            continue
        if name not in there:
            if own.confirmed >= 0 and not any(own.confirmed <= number for number in own.absent):
                yield f"the {what} {own.confirmed} of {name} is gone"
        elif not own.confirmed <= there[name] <= own.tried:
            yield f"the {what} of {name} is {there[name]}; {own.confirmed} was confirmed and {own.tried} was the last"


def _difference(mine: list[Key], right: list[Key]) -> str:
    missing = [payload(key) for key in right if key not in set(mine)]
    more = [payload(key) for key, count in Counter(mine).items() if count > right.count(key)]
    at = next((place for place, pair in enumerate(zip(mine, right, strict=False)) if pair[0] != pair[1]), len(right))
    return f"missing {missing[:5]}, too many {more[:5]}, the first difference at {at}"
