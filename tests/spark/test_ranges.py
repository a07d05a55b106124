"""Sharing out ranges of offsets: nothing is left out and nothing comes twice, whatever the limits are."""

from hypothesis import given, strategies as st

from busway.spark.ranges import Range, admit, from_json, split, to_json

PLACES = st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "z"]))
RANGES = st.dictionaries(PLACES, st.tuples(st.integers(0, 500), st.integers(0, 300))).map(
    lambda found: [Range(*place, begin, begin + count) for place, (begin, count) in found.items()]
)


def offsets(ranges: list[Range]) -> list[tuple[str, str, int]]:
    return [(one.broker, one.stream, offset) for one in ranges for offset in range(one.begin, one.end)]


@given(RANGES, st.integers(1, 20), st.integers(0, 50))
def test_parts_are_the_whole(ranges: list[Range], parts: int, most: int) -> None:
    pieces = split(ranges, parts, most)
    assert offsets(pieces) == offsets(ranges)
    assert all(len(one) for one in pieces)
    assert len(pieces) >= min(parts, len(offsets(ranges)))
    assert not most or max(map(len, pieces), default=0) <= most


@given(
    st.dictionaries(PLACES, st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=5),
    st.integers(1, 400),
)
def test_a_limit_is_kept_and_nothing_stands_still(found: dict[tuple[str, str], tuple[int, int]], most: int) -> None:
    start = {place: begin for place, (begin, _) in found.items()}
    latest = {place: begin + more for place, (begin, more) in found.items()}
    ends = admit(start, latest, most)
    moved = sum(ends[place] - start[place] for place in start)
    assert all(start[place] <= ends[place] <= latest[place] for place in start)
    assert moved == min(most, sum(more for _, more in found.values()))


@given(st.dictionaries(PLACES, st.integers(0, 2**60)))
def test_offsets_in_a_checkpoint(offsets: dict[tuple[str, str], int]) -> None:
    assert from_json(to_json(offsets)) == offsets
