"""Charts of the report: draws lines and bars as SVG and HTML, without scripts or external files. The page calls it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Final

_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 26
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)
"""Possible distances in seconds between the marks of a time axis."""

Points = Sequence[float | None]
Shown = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart. `kind` is the CSS class that sets its colour."""

    name: str
    kind: str
    points: Points


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis from `low` to `high`, with marks."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return _TOP + (1 - min(max(part, 0), 1)) * (_HEIGHT - _TOP - _BOTTOM)


def linear(most: float) -> Axis:
    """Return an axis from 0 to at least `most`, with about four round marks."""
    most = most if most > 0 else 1.0
    step = 10 ** math.floor(math.log10(most / 4))
    step = next(step * more for more in (1, 2, 2.5, 5, 10) if step * more * 4.0001 >= most)
    count = math.ceil(most / step - 1e-9)
    return Axis(0, step * count, tuple(step * number for number in range(count + 1)))


def logarithmic(low: float, high: float) -> Axis:
    """Return a logarithmic axis with marks at powers of ten."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    every = max((last - first) // 5, 1)
    return Axis(10.0**first, 10.0**last, tuple(10.0**power for power in range(first, last + 1, every)), log=True)


def over_time(
    title: str,
    begin: datetime,
    every: timedelta,
    lines: Sequence[Line],
    axis: Axis,
    shown: Shown,
    *,
    filled: bool = False,
) -> str:
    """Draw lines over consecutive intervals from `begin` on. None is a hole in a line."""
    count = max(len(line.points) for line in lines)
    each = (_WIDTH - _LEFT - _RIGHT) / count
    parts = [_grid(axis, shown), _times(begin, every, count, each)]
    for line in lines:
        for run in _runs(line.points):
            places = [(_LEFT + (place + 0.5) * each, axis(value)) for place, value in run]
            parts.append(_drawn(line.kind, places, filled=filled))
    for place in range(count):
        values = [f"{line.name}: {shown(value)}" for line in lines if (value := line.points[place]) is not None]
        if values:
            when = _when(begin + place * every)
            text = escape("\n".join([when, *values]))
            parts.append(
                f'<rect class="hit" x="{_LEFT + place * each:.1f}" y="{_TOP}" width="{each:.2f}" '
                f'height="{_HEIGHT - _TOP - _BOTTOM}"><title>{text}</title></rect>'
            )
    legend = (
        "".join(f'<span class="key {line.kind}">{escape(line.name)}</span>' for line in lines) if len(lines) > 1 else ""
    )
    return (
        f'<figure><figcaption>{escape(title)}<span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw a bar for each name, value and text."""
    most = max((value for _, value, _ in rows), default=1) or 1
    body = "".join(
        f'<tr><th scope="row" title="{escape(name)}">{escape(name) or "<i>none</i>"}</th>'
        f'<td><div class="bar"><div style="width:{100 * value / most:.1f}%"></div></div></td><td class="n">{escape(text)}</td></tr>'
        for name, value, text in rows
    )
    return f'<figure><figcaption>{escape(title)}</figcaption><table class="bars">{body}</table></figure>'


def _grid(axis: Axis, shown: Shown) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{axis(mark):.1f}" y2="{axis(mark):.1f}"/>'
        f'<text class="mark end" x="{_LEFT - 8}" y="{axis(mark) + 4:.1f}">{escape(shown(mark))}</text>'
        for mark in axis.marks
    )


def _times(begin: datetime, every: timedelta, count: int, each: float) -> str:
    whole = count * every.total_seconds()
    step = next((step for step in _STEPS if whole / step <= 8), _STEPS[-1] * math.ceil(whole / _STEPS[-1] / 8))
    out = []
    first = math.ceil(begin.timestamp() / step) * step
    for mark in range(first, math.ceil(begin.timestamp() + whole), step):
        at = _LEFT + (mark - begin.timestamp()) / every.total_seconds() * each
        time = datetime.fromtimestamp(mark, begin.tzinfo)
        text = f"{time:%d %b}" if step >= 86400 else f"{time:%H:%M:%S}" if step < 60 else f"{time:%H:%M}"
        if step < 86400 and time.hour == time.minute == time.second == 0:
            text = f"{time:%d %b}"
        out.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM + 4}"/>'
            f'<text class="mark middle" x="{min(at, _WIDTH - 24):.1f}" y="{_HEIGHT - 6}">{text}</text>'
        )
    return "".join(out)


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _runs(points: Points) -> list[list[tuple[int, float]]]:
    """Return the parts of a line without holes."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(points):
        if value is not None:
            runs[-1].append((place, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _drawn(kind: str, places: Sequence[tuple[float, float]], *, filled: bool) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    (left, _), (right, last) = places[0], places[-1]
    if len(places) == 1:
        return f'<circle class="dot {kind}" cx="{right:.1f}" cy="{last:.1f}" r="3"/>'
    bottom = _HEIGHT - _BOTTOM
    area = f'<path class="area {kind}" d="M{left:.1f} {bottom}L{path}L{right:.1f} {bottom}Z"/>' if filled else ""
    return f'{area}<path class="line {kind}" d="M{path}"/>'
