"""The figures of a mesh as Markdown: machine, goals, one table per work."""

from collections.abc import Callable, Iterator
from math import inf
from statistics import median
from typing import Any

import msgspec

from benchmarks.page import Row, Section, page
from benchmarks.peers.goals import Goal
from benchmarks.peers.report import where

from .size import MORE, Measured, patterns, told_first, told_later, told_members

Values = dict[str, float]


class Figures(msgspec.Struct):
    """Everything a run has found; what the JSON file holds."""

    machine: dict[str, Any]
    versions: list[str]
    settings: dict[str, Any]
    rate: list[Values] = []
    hop: list[Values] = []
    copies: list[Values] = []
    join: list[Values] = []
    silent: list[Values] = []
    size: list[Measured] = []
    failures: list[str] = []


WORKS = ("rate", "hop", "copies", "join", "silent", "size")


def of(rounds: list[Values], what: str | Callable[[Values], float]) -> float:
    """The median over the rounds: a slow moment of the machine hits both sides of a ratio alike."""
    return median(one[what] if isinstance(what, str) else what(one) for one in rounds)


def added(one: Values) -> float:
    """By the second node."""
    return one["two"] - one["one"]


def half(one: Values) -> float:
    """Of the way over one node, which is two hops."""
    return one["one"] / 2


def bare_hop(one: Values) -> float:
    """What the second relay adds."""
    return one["bare_two"] - one["bare_one"]


def hops_added(one: Values) -> float:
    """By the second node, in hops of the bare wire; a round that has none to compare with does not speak for the node."""
    return added(one) / bare_hop(one) if bare_hop(one) > 0 else inf


def judge(found: Figures) -> Iterator[Goal]:
    """The goals whose parts were measured."""
    if found.rate:
        ratio = of(found.rate, lambda one: one["two_rate"] / one["one_rate"])
        yield Goal("publisher and subscriber at two nodes: rate / at one", ratio, 0.5, True)
        lost = sum(one["one_lost"] + one["two_lost"] for one in found.rate)
        yield Goal("messages lost meanwhile", lost, 0, False, "")
    if found.hop:
        what = "p50 that the second node adds / what a second bare relay adds"
        yield Goal(what, of(found.hop, hops_added), 1.2, False)
    for one in found.copies:
        beyond = one["crossed"] - one["published"]
        yield Goal(f"{one['subscribers']:.0f} subscribers behind a link: copies beyond the first", beyond, 0, False, "")
    if found.join:
        what = f"a new node knows of {found.join[0]['subscriptions']:,.0f} subscriptions after, the slowest"
        yield Goal(what, max(max(one["from_link"], one["from_ready"]) for one in found.join), 2, False, "s")
    for one in found.silent:
        what = f"silent mesh of {one['nodes']:.0f}: % of a core for each link"
        yield Goal(what, 100 * one["each_link"], 1, False, "%")
    for grown in found.size:
        first, later, _ = _formula(grown)
        what = f"simulated mesh of {grown.nodes}: bytes of interest that the formula does not tell"
        yield Goal(what, abs(grown.first - first) + abs(grown.later - later), 0, False, "")


def markdown(found: Figures) -> str:
    how = found.settings
    method = f"Payload {how['size']} bytes; medians of {how['rounds']} rounds in which all ways are taken in turn."
    place = where(found.machine, *found.versions, "loopback")
    return page("The mesh", place, method, judge(found), _sections(found), found.failures)


def _sections(found: Figures) -> Iterator[Section]:
    """Title, head and rows of each table."""
    if rates := found.rate:
        head: Row = ("", "messages/s", "CPU s of the brokers per million", "lost")
        ways = (("one", "at one node"), ("two", "at two nodes"))
        yield (
            "One publisher to one subscriber",
            head,
            [
                (
                    name,
                    f"{of(rates, f'{way}_rate'):,.0f}",
                    f"{of(rates, f'{way}_broker_cpu_per_million'):.2f}",
                    f"{of(rates, f'{way}_lost'):,.0f}",
                )
                for way, name in ways
            ],
        )
    if hops := found.hop:
        head = ("", "through one", "through two", "the second adds", "half of one")
        bare = of(hops, "bare_one") / 2
        yield (
            "One message after the other, p50 in µs",
            head,
            [
                ("nodes", *_times(of(hops, "one"), of(hops, "two"), of(hops, added), of(hops, half))),
                ("bare relays", *_times(of(hops, "bare_one"), of(hops, "bare_two"), of(hops, bare_hop), bare)),
            ],
        )
    if found.copies:
        names: Row = ("subscribers", "published", "crossed", "delivered", "bytes_each")
        head = ("subscribers", "published", "crossed the link", "delivered", "bytes of each on the link")
        rows: list[Row] = [tuple(f"{one[name]:,.0f}" for name in names) for one in found.copies]
        yield "Subscribers behind a link", head, rows
    if found.join:
        names = ("from_link", "from_ready", "from_start")
        head = ("subscriptions", "known after its link is up, s", "after it listens", "after its process was started")
        rows = [(f"{one['subscriptions']:,.0f}", *(f"{one[name]:.2f}" for name in names)) for one in found.join]
        yield "A node that comes newly", head, rows
    if found.silent:
        names = ("all", "each_link", "alone")
        head = ("nodes", "links", "% of a core, all nodes", "each link", "a broker in no cluster")
        rows = [
            (f"{one['nodes']:.0f}", f"{one['links']:.0f}", *(f"{100 * one[name]:.3f}" for name in names))
            for one in found.silent
        ]
        yield "A silent mesh", head, rows
    if found.size:
        head = (
            "nodes", "links", "wanted at each", "interest when all are linked", "formula",
            "one thing more and less", "formula", "of other nodes", "formula, at most", "all",
        )  # fmt: skip
        yield "A simulated mesh, bytes that each node sends", head, [_grown(one) for one in found.size]


def _times(*times: float) -> Row:
    return tuple(f"{time:.1f}" for time in times)


def _formula(one: Measured) -> tuple[int, int, int]:
    wanted = patterns(0, one.wants)
    return told_first(one.nodes, wanted), told_later(one.nodes, MORE), told_members(one.nodes, one.sighting)


def _grown(one: Measured) -> Row:
    first, later, members = _formula(one)
    told = (one.first, first, one.later, later, one.members, members, one.said)
    return tuple(f"{figure:,}" for figure in (one.nodes, one.links, one.wants, *told))
