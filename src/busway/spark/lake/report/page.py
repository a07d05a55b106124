"""Page of the report: shows stats as one self-contained HTML file. `busway lake stats --html` calls it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from busway.spark.lake.report.charts import Line, bars, linear, logarithmic, over_time
from busway.spark.lake.stats import Interval, Share, StatsReport

_MOST_POINTS: Final = 300
"""Largest number of points of a chart. With more intervals, neighbours are drawn as one point."""
_MOST_ROWS: Final = 500
"""Largest number of rows of the table."""
_UNITS: Final = ("", "k", "M", "G", "T", "P")

_STYLE: Final = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2330;--soft:#667085;--line:#e3e7ed;--a:#2563eb;--b:#0d9488;--c:#d97706;--d:#dc2626}
@media(prefers-color-scheme:dark){:root{--back:#0f141b;--card:#171e28;--text:#e6eaf0;--soft:#93a0b4;--line:#2a3442;--a:#60a5fa;--b:#2dd4bf;--c:#fbbf24;--d:#f87171}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:24px;margin:0}
.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(112px,1fr));gap:12px;margin:24px 0}
.tile,figure,details{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 16px}.tile b{display:block;font-size:22px;font-weight:650;line-height:1.3}.tile span{color:var(--soft);font-size:13px}
figure{margin:0 0 16px;padding:14px 16px 10px}
figcaption{font-weight:600;margin-bottom:6px;display:flex;justify-content:space-between;gap:12px;flex-wrap:wrap}
.legend{font-weight:400;font-size:13px;color:var(--soft)}
.key{margin-left:14px}.key:before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle;background:var(--a)}
.key.b:before{background:var(--b)}.key.c:before{background:var(--c)}.key.d:before{background:var(--d)}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--line);stroke-width:1}
.mark{fill:var(--soft);font-size:12px}.end{text-anchor:end}.middle{text-anchor:middle}
.line{fill:none;stroke:var(--a);stroke-width:2;stroke-linejoin:round}.area{fill:var(--a);opacity:.15}.dot{fill:var(--a)}
.line.b{stroke:var(--b)}.line.c{stroke:var(--c)}.line.d{stroke:var(--d);stroke-width:1;stroke-dasharray:3 3}
.area.b,.dot.b{fill:var(--b)}.dot.c{fill:var(--c)}.dot.d{fill:var(--d)}
.hit{fill:transparent}.hit:hover{fill:var(--text);opacity:.08}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.bars{table-layout:fixed}.bars th{width:42%;text-align:left;font-weight:400;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;padding:4px 10px 4px 0}
.bars td{padding:4px 0}.bars td.n{width:30%;text-align:right;color:var(--soft);font-size:13px;padding-left:10px;white-space:nowrap}
.bar{height:12px;border-radius:3px;background:var(--line)}.bar div{height:100%;border-radius:3px;background:var(--a);min-width:2px}
details{padding:12px 16px;overflow-x:auto}summary{cursor:pointer;font-weight:600}
.rows{margin-top:10px;font-size:13px}.rows th,.rows td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
.rows th{color:var(--soft);font-weight:500}.rows .l{text-align:left}
"""


def page(report: StatsReport, title: str = "Busway stats") -> str:
    """Return the report as one HTML file with charts and tables. It loads nothing from elsewhere."""
    body = _empty() if not report.intervals else _charts(report) + _tops(report) + _table(report)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><main><h1>{escape(title)}</h1><div class="soft">{escape(_span(report))}</div>{_tiles(report)}{body}</main></body></html>\n'
    )


def shown_number(value: float) -> str:
    """Format a number with three digits and a unit: 1.2k."""
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            return f"{value:.3g}{unit}" if abs(value) < 999.5 else f"{value:.0f}{unit}"
        value /= 1000
    raise AssertionError("the last unit takes everything")


def shown_bytes(value: float) -> str:
    """Format a number of bytes: 1.2kB."""
    return f"{shown_number(value)}B"


def shown_seconds(value: float | None) -> str:
    """Format a duration in s, ms or µs; None is `-`."""
    if value is None:
        return "-"
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * scale >= 1 or unit == "µs":
            return f"{value * scale:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} s"
    raise AssertionError("the last unit takes everything")


def _span(report: StatsReport) -> str:
    if not report.intervals:
        return "no messages"
    first, last = _begin(report.intervals[0]), _begin(report.intervals[-1]) + report.every
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC, every {shown_seconds(report.every.total_seconds())}"


def _tiles(report: StatsReport) -> str:
    total, seconds = report.total, report.every.total_seconds()
    most = max((interval.messages for interval in report.intervals), default=0) / seconds
    tiles = (
        (shown_number(total.messages), "messages"),
        (shown_bytes(total.bytes), "payload"),
        (f"{shown_number(most)}/s", "highest rate"),
        (shown_number(total.topics), "topics"),
        (shown_number(total.senders), "senders"),
        (shown_seconds(total.p50), "latency, half"),
        (shown_seconds(total.p99), "latency, 99 %"),
        (shown_seconds(total.max), "latency, most"),
    )
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{a}</b><span>{b}</span></div>' for a, b in tiles)
        + "</div>"
    )


def _empty() -> str:
    return "<p>No message was stored in this time.</p>"


def _charts(report: StatsReport) -> str:
    spaced = _spaced(report)
    together = -(-len(spaced) // _MOST_POINTS)
    groups = [
        [interval for interval in spaced[at : at + together] if interval] for at in range(0, len(spaced), together)
    ]
    begin, every = _begin(report.intervals[0]), report.every * together
    seconds = every.total_seconds()
    rates = [sum(interval.messages for interval in group) / seconds for group in groups]
    sizes = [sum(interval.bytes for interval in group) / seconds for group in groups]
    out = over_time(
        "Messages a second",
        begin,
        every,
        [Line("messages a second", "a", rates)],
        linear(max(rates)),
        shown_number,
        filled=True,
    )
    out += over_time(
        "Bytes a second",
        begin,
        every,
        [Line("bytes a second", "b", sizes)],
        linear(max(sizes)),
        shown_bytes,
        filled=True,
    )
    names = (("half", "a", "p50"), ("90 %", "b", "p90"), ("99 %", "c", "p99"), ("most", "d", "max"))
    lines = [Line(label, kind, [_worst(group, name) for group in groups]) for label, kind, name in names]
    values = [value for line in lines for value in line.points if value is not None and value > 0]
    if values:
        axis = logarithmic(max(min(values), 1e-6), max(*values, 2e-6))
        out += over_time("Latency, from sent to stored", begin, every, lines, axis, shown_seconds)
    if together > 1:
        out += f'<p class="soft">Each point of a chart combines {together} intervals: the mean of their rates, and their largest latencies.</p>'
    return out


def _spaced(report: StatsReport) -> list[Interval | None]:
    """Return all intervals from the first on, with None for intervals without a message."""
    first = _begin(report.intervals[0])
    spaced: list[Interval | None] = []
    for interval in report.intervals:
        place = (_begin(interval) - first) // report.every
        if place > _FARTHEST:
            break  # the clock of a broker was wrong by years; the table shows the interval
        spaced += [None] * (place - len(spaced))
        spaced.append(interval)
    return spaced


_FARTHEST: Final = 1_000_000
"""Largest number of intervals from the first to the last point of a chart."""


def _worst(group: Sequence[Interval], name: str) -> float | None:
    return max((value for interval in group if (value := getattr(interval, name)) is not None), default=None)


def _begin(interval: Interval) -> datetime:
    assert interval.begin is not None
    return interval.begin.astimezone(UTC)


def _tops(report: StatsReport) -> str:
    total = report.total

    def rows(shares: Sequence[Share]) -> list[tuple[str, float, str]]:
        return [
            (share.name, share.messages, f"{shown_number(share.messages)}, {shown_bytes(share.bytes)}")
            for share in shares
        ]

    return f'<div class="two">{bars("Top topics", rows(total.top_topics))}{bars("Top senders", rows(total.top_senders))}</div>'


def _table(report: StatsReport) -> str:
    head = (
        "from",
        "messages",
        "a second",
        "bytes",
        "topics",
        "senders",
        "half",
        "90 %",
        "99 %",
        "most",
        "top topic",
        "top sender",
    )
    left = {"from", "top topic", "top sender"}
    seconds = report.every.total_seconds()
    body = []
    for interval in report.intervals[:_MOST_ROWS]:
        values = (
            f"{_begin(interval):%Y-%m-%d %H:%M:%S}",
            f"{interval.messages:,}",
            shown_number(interval.messages / seconds),
            shown_bytes(interval.bytes),
            f"{interval.topics:,}",
            f"{interval.senders:,}",
            *(shown_seconds(value) for value in (interval.p50, interval.p90, interval.p99, interval.max)),
            interval.top_topics[0].name if interval.top_topics else "",
            interval.top_senders[0].name if interval.top_senders else "",
        )
        body.append(_row("td", head, values, left))
    more = len(report.intervals) - len(body)
    note = f'<p class="soft">{more:,} more intervals are not shown.</p>' if more > 0 else ""
    return (
        f"<details{' open' if len(body) <= 30 else ''}><summary>Intervals</summary>"
        f'<table class="rows">{_row("th", head, head, left)}{"".join(body)}</table>{note}</details>'
    )


def _row(cell: str, names: Sequence[str], values: Sequence[str], left: set[str]) -> str:
    cells = (
        f"<{cell}{' class=l' if name in left else ''}>{escape(value)}</{cell}>"
        for name, value in zip(names, values, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"
