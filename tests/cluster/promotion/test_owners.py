"""Who owns the streams of a node: the highest epoch counts, and all nodes agree."""

from itertools import permutations

import msgspec
import pytest

from busway.cluster.node import Stranger
from busway.cluster.promotion.messages import REPORT
from busway.cluster.promotion.owners import Owner, Owners
from busway.cluster.promotion.owners_file import Content, OwnersFile
from busway.cluster.promotion.returned import unshared
from busway.cluster.replication.compare import have
from busway.cluster.replication.messages import Have
from busway.errors import DataFailed
from tests.support.mirror_machines import filled

A, B, C = (letter * 32 for letter in "abc")


def test_a_node_owns_its_streams_until_another_one_is_promoted():
    owners = Owners(A)
    assert (owners.get(A).epoch, owners.get(A).owner, owners.replaced) == (1, A, False)
    assert owners.learn(Owner(A, 2, B))
    assert (owners.get(A).owner, owners.replaced, owners.of(B), owners.next_epoch(A)) == (B, True, [A], 3)


def test_a_lower_epoch_changes_nothing():
    owners = Owners(C, [Owner(A, 3, B)])
    assert not owners.learn(Owner(A, 2, C))
    assert not owners.learn(Owner(A, 3, B))
    assert owners.known == (Owner(A, 3, B),)


@pytest.mark.parametrize("order", list(permutations([Owner(A, 2, B), Owner(A, 2, C), Owner(A, 1, C)])))
def test_in_any_order_all_agree_on_one_owner(order):
    """Also if two mirrors were forced at the same time."""
    assert Owners(A, order).get(A).owner == C


def test_the_file_keeps_what_is_known(tmp_path):
    content = Content([Owner(A, 2, B, {"orders": Have(0, 7, b"mark")})], [A])
    OwnersFile(tmp_path).save(content)
    assert OwnersFile(tmp_path).load() == content
    assert OwnersFile(None).load() == Content()


def test_a_damaged_file_is_refused(tmp_path):
    """A node that forgot that it was replaced would deliver again."""
    OwnersFile(tmp_path).save(Content([Owner(A, 2, B)]))
    file = tmp_path / "owners.json"
    file.write_bytes(file.read_bytes().replace(b"2", b"1", 1))
    with pytest.raises(DataFailed, match=r"can't read .*owners\.json.*restore the file"):
        OwnersFile(tmp_path).load()


def test_a_report_with_no_valid_owner_is_refused():
    packed = msgspec.msgpack.encode(([("a", 2, B, {})], [], []))
    with pytest.raises(Stranger, match="invalid report of promotions"):
        REPORT.read(packed)


@pytest.mark.parametrize(("here", "there", "first"), [(10, 6, 6), (6, 6, 6), (4, 6, 4), (5, 0, 0)])
def test_what_only_a_returned_node_has_begins_behind_the_end_of_the_owner(here, there, first):
    assert unshared(filled(here), have(filled(there))) == first


def test_what_only_a_returned_node_has_of_a_stream_that_the_owner_lacks_or_has_otherwise_is_everything():
    assert unshared(filled(3), None) == 0
    theirs = have(filled(3))
    assert unshared(filled(5), Have(0, 3, b"another record")) == 0 != unshared(filled(5), theirs)
