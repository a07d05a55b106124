"""A replicated map against a model: whatever changes reach a node, in whatever order, the latest of each key counts."""

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from busway.cluster.replicated_map import ReplicatedMap
from tests.support.strength import examples


@dataclass(frozen=True)
class Change:
    key: str
    version: tuple[int, str]
    removed: bool
    value: int = 0


changes = st.lists(
    st.builds(
        Change,
        key=st.sampled_from("abcd"),
        version=st.tuples(st.integers(0, 4), st.sampled_from(["one", "two"])),
        removed=st.booleans(),
    ),
    max_size=25,
)


def latest(seen: list[Change]) -> dict[str, Change]:
    """The model."""
    found: dict[str, Change] = {}
    for change in seen:
        known = found.get(change.key)
        if known is None or (change.version, change.removed) > (known.version, known.removed):
            found[change.key] = change
    return found


def made(seen: list[Change]) -> ReplicatedMap[str, Change]:
    known = ReplicatedMap[str, Change](100)
    for change in seen:
        known.put(change)
    return known


@given(changes)
@settings(max_examples=examples(500), deadline=None)
def test_the_latest_entry_of_each_key_counts(seen) -> None:
    known = ReplicatedMap[str, Change](100)
    for number, change in enumerate(seen):
        before = latest(seen[:number]).get(change.key)
        counts = before is None or (change.version, change.removed) > (before.version, before.removed)
        assert known.newer(change) == counts
        assert (known.later(change) is not None) == (not counts and before != change)
        assert known.put(change) == counts
    model = latest(seen)
    assert {change.key: change for change in known} == model
    assert all(known.get(key) == model.get(key) for key in "abcd")
    assert known.values == sum(not change.removed for change in model.values())


@given(changes, st.randoms(use_true_random=False))
@settings(max_examples=examples(500), deadline=None)
def test_the_order_of_arrival_does_not_matter(seen, chance) -> None:
    mixed = seen * 2
    chance.shuffle(mixed)
    one, two = made(seen), made(mixed)
    assert {change.key: change for change in one} == {change.key: change for change in two}
    assert one.digest == two.digest


@given(changes, changes)
@settings(max_examples=examples(500), deadline=None)
def test_maps_with_one_digest_have_the_same_values_and_all_entries_make_them_equal(seen, others) -> None:
    one, two = made(seen), made(others)

    def values(known):
        return {(change.key, change.version) for change in known if not change.removed}

    assert (one.digest == two.digest) == (values(one) == values(two))
    for change in list(one):
        two.put(change)
    for change in list(two):
        one.put(change)
    assert one.digest == two.digest
    assert set(one) == set(two)


@given(changes, st.integers(0, 3))
@settings(max_examples=examples(500), deadline=None)
def test_removals_are_forgotten_if_they_are_old_or_many(seen, most) -> None:
    forgotten: list[str] = []
    known = ReplicatedMap[str, Change](most, 2, forgotten.append)
    for change in seen:
        known.put(change)
        assert sum(entry.removed for entry in known) <= most
    values = {entry.key for entry in known if not entry.removed}
    left = [entry.key for entry in known if entry.removed]
    del forgotten[:]
    known.tidy(2)
    assert forgotten == [], "none is older than 2"
    known.tidy(7)
    assert sorted(forgotten) == sorted(left)
    assert {entry.key for entry in known} == values
