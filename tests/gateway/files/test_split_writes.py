"""A write that comes in pieces, put together again."""

from hypothesis import given, settings, strategies as st

from busway.gateway.files.kernel.protocol import MOST, PAGE
from busway.gateway.files.long_writes import FULL, Pieces
from tests.support.strength import examples


@given(st.integers(0, MOST - FULL - 1), st.integers(1, 3 * MOST + PAGE), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_write_is_put_together_as_the_kernel_has_cut_it(misaligned, size, known):
    """The first piece ends where the pages are full, whatever places in their pages its parts begin and end at."""
    data = bytes(size)
    pieces, at, last = Pieces(size if known else None), 0, False
    limit = MOST - misaligned
    while at < size:
        assert not last
        piece = data[at : at + limit]
        assert pieces.continues(at, len(piece))
        last = pieces.add(piece)
        at, limit = at + len(piece), MOST
    assert last or not known
    assert last or len(piece) > FULL  # so long that another could have followed
    assert pieces.whole() == data


def test_a_new_write_does_not_go_on_with_what_is_held():
    pieces = Pieces()
    assert not pieces.add(bytes(MOST))
    assert not pieces.continues(0, 1)
    assert pieces.continues(MOST, 1)
    assert not pieces.continues(MOST - 1, 1)


def test_nothing_follows_what_is_whole():
    pieces = Pieces(MOST + 10)
    assert not pieces.add(bytes(MOST))
    assert not pieces.continues(MOST, 11)
    assert pieces.continues(MOST, 10)
    assert pieces.add(bytes(10))
