"""Stats: figures of intervals against a plain count, and a page that shows them."""

from collections import Counter, defaultdict
from datetime import timedelta
from html.parser import HTMLParser
from random import Random

import pytest

from busway.spark.lake.report.charts import linear, logarithmic
from busway.spark.lake.report.page import page, shown_bytes, shown_number, shown_seconds
from busway.spark.lake.stats import Interval, Share, StatsReport, length, stats, stats_report
from tests.support.spark.rows import START, row, table


def test_intervals_agree_with_a_plain_count(spark):
    random, rows = Random(1), []
    for offset in range(500):
        stored = START + timedelta(seconds=random.randrange(300), microseconds=random.randrange(10**6))
        late = timedelta(microseconds=random.randrange(-1000, 10**6))
        rows.append(
            row(
                offset,
                random.choice("aaabbc"),
                sender=random.choice(["feed", "web", ""]),
                payload=bytes(random.randrange(200)),
                stored=stored,
                time=stored - late,
            )
        )
    report = stats_report(table(spark, rows), "1 minute", top=2)
    groups = defaultdict(list)
    for one in rows:
        groups[one["stored"].replace(second=0, microsecond=0)].append(one)
    assert [one.begin for one in report.intervals] == sorted(groups)
    for got, some in [(report.total, rows), *((one, groups[one.begin]) for one in report.intervals)]:
        late = sorted((one["stored"] - one["time"]).total_seconds() for one in some)
        assert got.messages == len(some)
        assert got.bytes == sum(len(one["payload"]) for one in some)
        assert got.max == late[-1]
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            rank = sum(value <= getattr(got, name) for value in late) / len(late)
            assert abs(rank - part) < 0.02
        assert (got.topics, got.senders) == (3, 3)
        for key, shares in (("topic", got.top_topics), ("sender", got.top_senders)):
            counts, sizes = Counter(), Counter()
            for one in some:
                counts[one[key]] += 1
                sizes[one[key]] += len(one["payload"])
            order = sorted(counts, key=lambda name: (-counts[name], -sizes[name], name))
            assert shares == tuple(Share(name, counts[name], sizes[name]) for name in order[:2])

    frame = stats(table(spark, rows), timedelta(minutes=1), top=2)
    first, *rest = frame.collect()
    assert first["rate"] == report.intervals[0].messages / 60
    assert first["throughput"] == report.intervals[0].bytes / 60
    assert [one["name"] for one in first["top_topics"]] == [one.name for one in report.intervals[0].top_topics]
    assert len(rest) == len(report.intervals) - 1


def test_nothing_has_no_intervals(spark):
    report = stats_report(table(spark, []))
    assert (report.intervals, report.total.messages, report.total.p50) == ((), 0, None)
    assert "no messages" in page(report)
    with pytest.raises(ValueError, match="the column 'payload' is missing"):
        stats(table(spark, []).drop("payload"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 minute", 60),
        ("30s", 30),
        ("1.5 h", 5400),
        ("day", 86400),
        ("2 mins", 120),
        ("10 seconds", 10),
        ("1h30m", 5400),
        (5, 5),
    ],
)
def test_lengths_of_intervals(text, seconds):
    assert length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "minute 1", "0s", "1 month", "-1m", "400d", -5, True])
def test_lengths_that_are_none(text):
    with pytest.raises(ValueError, match="can't be"):
        length(text)


class _Checked(HTMLParser):
    """Sees to it that tags are closed in their order, and that nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        assert tag not in {"script", "link", "img", "iframe", "object"}
        assert not {name for name, _ in attrs} & {"src", "href", "xlink:href", "onload", "onclick"}
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def _interval(minute: int, messages: int = 60, name: str = "price/eth") -> Interval:
    share = (Share(name, messages, 1000),)
    return Interval(START + timedelta(minutes=minute), messages, 6000, 1, 1, 0.001, 0.002, 0.004, 0.1, share, share)


def _page(*intervals: Interval) -> tuple[str, _Checked]:
    report = StatsReport(timedelta(minutes=1), _interval(0, sum(one.messages for one in intervals)), intervals)
    made = page(report, "A <title>")
    checked = _Checked()
    checked.feed(made)
    assert checked.open == []
    for word in ("url(", "@import", "http", "NaN", "inf"):
        assert word not in made
    return made, checked


def test_the_page_is_whole_and_loads_nothing():
    made, checked = _page(_interval(0), _interval(1, 600), _interval(5, name="<b>&"))
    assert checked.seen["svg"] == 3
    assert "A &lt;title&gt;" in made
    assert "&lt;b&gt;&amp;" in made
    assert "2026-01-31 12:00:00 to 2026-01-31 12:06:00 UTC" in made
    assert "prefers-color-scheme:dark" in made
    assert made.count('<rect class="hit"') == 6 + 6 + 3  # rates are 0 where nothing is, latencies are not there


def test_charts_of_many_intervals_stay_small():
    made, checked = _page(*map(_interval, range(10_000)))
    assert checked.seen["rect"] <= 3 * 300
    assert "Each point of a chart combines 34 intervals" in made
    assert "9,500 more intervals are not shown" in made


def test_one_interval_and_a_latency_of_nothing_can_be_drawn():
    _page(_interval(0))
    only = _interval(0)
    _page(Interval(only.begin, 1, 0, 1, 1, 0.0, 0.0, 0.0, -0.5))


@pytest.mark.parametrize("most", [0, 1e-9, 0.3, 1, 7, 99.5, 100, 12345, 8e12])
def test_an_axis_has_some_round_marks_and_room_for_all(most):
    axis = linear(most)
    assert axis.high >= most
    assert 2 <= len(axis.marks) <= 6
    assert axis(0) > axis(axis.high)
    log = logarithmic(max(most, 1e-6), max(most, 1e-6) * 1000)
    assert len(log.marks) <= 8


def test_numbers_for_people():
    assert [shown_number(value) for value in (0, 12.34, 999.4, 1234, 5e6, 2e18)] == [
        "0",
        "12.3",
        "999",
        "1.23k",
        "5M",
        "2000P",
    ]
    assert shown_bytes(1e6) == "1MB"
    assert [shown_seconds(value) for value in (None, 0.0, 0.0000123, 0.0015, 2, 5000)] == [
        "-",
        "0 µs",
        "12.3 µs",
        "1.5 ms",
        "2 s",
        "5,000 s",
    ]
