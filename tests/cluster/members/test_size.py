"""The traffic that docs/howto/cluster.md states for a cluster's size equals that of simulated nodes."""

import re
from pathlib import Path

import pytest

from benchmarks.mesh.size import MORE, Measured, links, measure, patterns, told_first, told_later, told_members

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "cluster.md"
FORMULA = re.compile(r"^\| ([^|`]+) \| `([^`]+)` \|$", re.MULTILINE)


def by_the_page(found: Measured, *, frames: int = 1) -> dict[str, int]:
    """What the formulas of the page come to, by what they are about."""
    values = {"n": found.nodes, "w": found.wants, "f": frames, "m": found.sighting}
    part = PAGE.read_text().partition("## How large")[2].partition("\n## ")[0]
    wanted = {"for one thing more": MORE, "for one thing less": MORE}
    return {
        what: eval(formula, values | {"p": len(wanted.get(what, patterns(0, 1)[0]))})
        for what, formula in FORMULA.findall(part)
    }


@pytest.mark.parametrize(("nodes", "wants"), [(2, 1), (3, 0), (12, 40)])
def test_nodes_send_as_many_bytes_as_the_page_says(nodes: int, wants: int) -> None:
    found = measure(nodes, wants)
    first, later, members = (
        told_first(nodes, patterns(0, wants)),
        told_later(nodes, MORE),
        told_members(nodes, found.sighting),
    )
    assert (found.links, found.first, found.later) == (links(nodes), first, later)
    assert found.members <= members
    said = by_the_page(found)
    assert said == {
        "links": found.links,
        "bytes of interest until all know": found.first,
        "for one thing more": found.later - 16 * found.links,
        "for one thing less": 16 * found.links,
        "bytes about other nodes while all come up, at most": members,
    }


def test_much_interest_takes_several_frames() -> None:
    """60 KiB of entries, and the one that goes beyond, are in one frame."""
    entry = 16 + len(patterns(0, 1)[0])
    fit = -(-(60 << 10) // entry)
    found = measure(3, fit + 1)
    assert found.first == told_first(3, patterns(0, fit + 1)) == 2 * (8 * 2 + (fit + 1) * entry)
    assert found.first == by_the_page(found, frames=2)["bytes of interest until all know"]
    assert told_first(3, patterns(0, fit)) == 2 * (8 + fit * entry)
