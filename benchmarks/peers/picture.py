"""The outcome as an SVG: one panel per work, one bar per system."""

from collections.abc import Iterator
from html import escape

from .goals import Medians
from .load import Sample

# work, title, value, factor, unit, more is better
PANELS = (
    ("throughput", "One to one", "rate", 1e-6, "M messages/s", True),
    ("fanout", "Fan-out, one to eight", "rate", 1e-6, "M deliveries/s", True),
    ("group", "Group of four", "rate", 1e-6, "M messages/s", True),
    ("request", "Round trip, median", "p50", 1, "µs (less is better)", False),
    ("inflight", "64 requests in flight", "rate", 1e-3, "k requests/s", True),
    ("written", "Durable publish, written, 256 in flight", "rate", 1e-3, "k messages/s", True),
    ("synced", "Durable publish, synced, 256 in flight", "rate", 1e-3, "k messages/s", True),
    ("catchup", "Catching up with stored messages", "rate", 1e-3, "k messages/s", True),
    ("take", "Take 256 and acknowledge", "rate", 1e-3, "k messages/s", True),
)
WIDTH, LABEL, BAR, GAP, HEAD = 760, 165, 18, 7, 44
OURS, THEIRS, INK, FAINT = "#0f7b6c", "#b4bcc6", "#1f2933", "#6b7785"


def draw(samples: list[Sample], caption: str) -> str:
    """The whole picture; panels without measurements are left out."""
    of = Medians(samples)
    body: list[str] = []
    top = 16
    for work, title, key, factor, unit, more in PANELS:
        rows = [(system, of.get(work, system, key) * factor) for system in of.systems(work)]
        if rows:
            rows.sort(key=lambda row: row[1], reverse=more)
            body += _panel(rows, top, title, unit)
            top += HEAD + len(rows) * (BAR + GAP) + 14
    body.append(_text(20, top + 6, caption, FAINT, 11))
    height = top + 24
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    look = 'font-family="system-ui, sans-serif" role="img" aria-label="Busway beside other message systems"'
    paper = f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>', paper, *body, "</svg>\n"])


def _panel(rows: list[tuple[str, float]], top: int, title: str, unit: str) -> Iterator[str]:
    yield _text(20, top + 18, title, INK, 15, weight="600")
    yield _text(WIDTH - 20, top + 18, unit, FAINT, 11, anchor="end")
    scale = (WIDTH - LABEL - 90) / max(value for _, value in rows)
    for number, (system, value) in enumerate(rows):
        y = top + HEAD - 12 + number * (BAR + GAP)
        ours = system.startswith("busway")
        yield _text(LABEL - 10, y + 13, system, INK, 12, anchor="end", weight="600" if ours else "400")
        width = max(1.0, value * scale)
        yield f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{OURS if ours else THEIRS}"/>'
        yield _text(LABEL + width + 6, y + 13, f"{value:.3g}" if value < 100 else f"{value:,.0f}", INK, 12)


def _text(x: float, y: float, text: str, fill: str, size: int, *, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
