"""Draws declined payments and alerts over time: an SVG with one row for each country."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, ROW, LEFT, TOP = 820, 74, 70, 64
INK, FAINT, LINE, BAD = "#1f2933", "#7b8794", "#0f7b6c", "#d64545"


def draw(shares: Mapping[str, Sequence[tuple[float, float]]], alerts: Mapping[str, Sequence[float]], title: str) -> str:
    """For each country its share of declined payments over time (seconds, 0 to 1), and the times of its alerts."""
    length = max((at for points in shares.values() for at, _ in points), default=1.0) or 1.0
    most = max((share for points in shares.values() for _, share in points), default=1.0) or 1.0
    height = TOP + ROW * len(shares) + 46
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    look = 'font-family="system-ui, sans-serif" role="img" aria-label="Declined payments and alerts"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(20, 30, title, INK, 16, "600"),
        _text(20, 50, "share of declined payments, and alerts that Spark published", FAINT, 12),
    ]

    def x(at: float) -> float:
        return LEFT + at / length * (WIDTH - LEFT - 30)

    for number, (country, points) in enumerate(sorted(shares.items())):
        base = TOP + ROW * (number + 1) - 10
        line = " ".join(f"{x(at):.1f},{base - share / most * (ROW - 22):.1f}" for at, share in points)
        told = alerts.get(country, ())
        out += [
            _text(20, base - 8, country, INK, 14, "600"),
            f'<line x1="{LEFT}" x2="{WIDTH - 30}" y1="{base}" y2="{base}" stroke="#e4e7eb"/>',
            f'<polyline points="{line}" fill="none" stroke="{BAD if told else LINE}" stroke-width="2" stroke-linejoin="round"/>',
            *(f'<circle cx="{x(at):.1f}" cy="{base - ROW + 20}" r="5" fill="{BAD}"/>' for at in told),
        ]
    base = TOP + ROW * len(shares) + 10
    out += [_text(x(length * part / 4), base + 10, f"{length * part / 4:.0f} s", FAINT, 11) for part in range(4)]
    out += [f'<circle cx="{WIDTH - 80}" cy="26" r="5" fill="{BAD}"/>', _text(WIDTH - 68, 30, "alert", FAINT, 12)]
    return "\n".join([*out, "</svg>\n"])


def _text(x: float, y: float, text: str, fill: str, size: int, weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
    )
