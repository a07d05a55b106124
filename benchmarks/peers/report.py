"""The outcome as Markdown: machine, versions, goals, one table per work."""

import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from .goals import MIB, Goal, Medians, judge
from .load import Run

TITLES = {
    "throughput": "One publisher to one subscriber",
    "fanout": "Fan-out, one publisher to eight subscribers",
    "group": "Group of four, one publisher",
    "request": "Request and reply, one after the other",
    "inflight": "Request and reply, 64 in flight",
    "written": "Durable publish, 256 in flight, acknowledged when written",
    "synced": "Durable publish, 256 in flight, acknowledged when synced",
    "catchup": "Catching up with what is stored",
    "take": "Take 256 and acknowledge",
    "stream": "One stream: records a second, of the log alone and over a broker",
    "long": "A long stream",
    "subscriptions": "100,000 wildcard subscriptions",
    "rules": "10,000 subscriptions with rules on three fields, one of which matches",
    "idle": "5,000 idle connections",
    "slow": "A subscriber stopped under full load",
}
DELIVERIES = (
    ("messages/s", "rate", 1, ",.0f"),
    ("broker CPU s per million", "broker_cpu_per_million", 1, ".2f"),
    ("publisher CPU s per million", "publisher_cpu_per_million", 1, ".2f"),
    ("subscriber CPU s per million", "subscriber_cpu_per_million", 1, ".2f"),
    ("broker memory MiB", "broker_memory", MIB, ".0f"),
    ("lost", "lost", 1, ",.0f"),
)
ROUND_TRIPS = (
    ("requests/s", "rate", 1, ",.0f"),
    ("p50 µs", "p50", 1, ",.0f"),
    ("p90 µs", "p90", 1, ",.0f"),
    ("p99 µs", "p99", 1, ",.0f"),
    ("p99.9 µs", "p999", 1, ",.0f"),
    ("broker CPU s per million", "broker_cpu_per_million", 1, ".1f"),
    ("broker memory MiB", "broker_memory", MIB, ".0f"),
)
STORING = (
    ("messages/s", "rate", 1, ",.0f"),
    ("broker CPU s per million", "broker_cpu_per_million", 1, ".2f"),
    ("client CPU s per million", "client_cpu_per_million", 1, ".2f"),
    ("broker memory MiB", "broker_memory", MIB, ".0f"),
    ("lost", "lost", 1, ",.0f"),
)
COLUMNS = {
    "throughput": DELIVERIES,
    "fanout": (("deliveries/s", *DELIVERIES[0][1:]), *DELIVERIES[1:]),
    "group": DELIVERIES,
    "request": ROUND_TRIPS,
    "inflight": ROUND_TRIPS,
    "written": STORING,
    "synced": STORING,
    "catchup": STORING,
    "take": STORING,
    "stream": (
        ("appended, log", "log_append", 1, ",.0f"),
        ("appended, broker", "append", 1, ",.0f"),
        ("to Arrow, log", "log_arrow", 1, ",.0f"),
        ("only the payload", "log_payload", 1, ",.0f"),
        ("to Arrow, broker", "arrow", 1, ",.0f"),
        ("only the payload", "payload", 1, ",.0f"),
    ),
    "long": (
        ("GiB", "gib", 1, ".1f"),
        ("opened in ms", "opened", 1e-3, ",.0f"),
        ("after a kill", "opened_killed", 1e-3, ",.0f"),
        ("broker memory MiB, short", "memory_short", MIB, ".1f"),
        ("long", "memory_long", MIB, ".1f"),
    ),
    "subscriptions": (
        ("bytes each", "bytes_each", 1, ",.0f"),
        ("messages/s with one", "rate_with_one", 1, ",.0f"),
        ("with 100,000", "rate_with_many", 1, ",.0f"),
        ("1,000 topics: with one", "rate_with_one_many_topics", 1, ",.0f"),
        ("with 100,000", "rate_with_many_many_topics", 1, ",.0f"),
    ),
    "rules": (
        ("messages/s with one", "rate_with_one", 1, ",.0f"),
        ("with 10,000", "rate_with_many", 1, ",.0f"),
        ("glob ns", "glob", 1, ",.0f"),
        ("list of 1,000 ns", "list", 1, ",.0f"),
        ("CEL ns, the dearest", "cel", 1, ",.0f"),
    ),
    "idle": (("bytes each", "bytes_each", 1, ",.0f"),),
    "slow": (
        ("others' messages/s before", "rate_before", 1, ",.0f"),
        ("while it is stopped", "rate_during", 1, ",.0f"),
        ("broker memory grows by MiB", "memory_growth", MIB, ".1f"),
        ("published", "published", 1, ",.0f"),
        ("received", "received", 1, ",.0f"),
        ("told as missed", "missed", 1, ",.0f"),
        ("others lost", "others_lost", 1, ",.0f"),
    ),
}

WHOLE = {"slow": "published"}
"""Works of which one repeat is shown whole, the one with the median of this, since its figures add up."""


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "filesystem": _filesystem(Path(tempfile.gettempdir())),
        "load_before": round(os.getloadavg()[0], 2),
    }


def where(box: Mapping[str, Any], *more: str) -> str:
    """What machine() has found as a sentence, with more to be said of it."""
    return (
        f"{box['processor']}, {box['cores']} cores, {box['memory_gib']} GiB, {box['system']}, Python {box['python']}, "
        f"{', '.join(more)}; load average before the run {box['load_before']}."
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    """Kind of the file system that holds the data folders of the brokers."""
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[one] for one in (folder, *folder.parents) if one in mounts), "unknown")


def markdown(run: Run) -> str:
    lines = ["# Busway beside other systems", "", *_circumstances(run)]
    goals = judge(run.samples)
    if goals:
        lines += ["", "## Goals", "", "| what | bar | measured | |", "|---|---|---|---|"]
        lines += [f"| {goal.what} | {bar(goal)} | {shown(goal.value, goal.unit)} | {word(goal)} |" for goal in goals]
    of = Medians(run.samples)
    for work, columns in COLUMNS.items():
        systems = of.systems(work)
        if not systems:
            continue
        lines += ["", f"## {TITLES[work]}", ""]
        lines += [
            "| system | " + " | ".join(title for title, *_ in columns) + " |",
            "|---" + "|--:" * len(columns) + "|",
        ]
        for system in systems:
            lines.append(f"| {system} | " + " | ".join(cells(of, work, system)) + " |")
        if work in WHOLE:
            lines += ["", "One repeat, the middle one by what was published: published is received and told as missed."]
    if run.failures:
        lines += ["", "## Failures", ""]
        lines += [f"- {failure.splitlines()[0]}" for failure in run.failures]
    return "\n".join(lines) + "\n"


def cells(of: Medians, work: str, system: str) -> list[str]:
    """One row: medians over the repeats, or one repeat."""
    one = of.whole(work, system, WHOLE[work]) if work in WHOLE else None
    return [
        format((of.get(work, system, key) if one is None else one[key]) / unit, form)
        for _, key, unit, form in COLUMNS[work]
    ]


def _circumstances(run: Run) -> list[str]:
    box, how = run.machine, run.settings
    method = (
        f"Payload {how['size']} bytes, {how['seconds']:g} s per measurement of which {how['warm']:g} s are warm-up, medians of "
        f"{how['repeats']} interleaved repeats. Publisher, broker and each subscriber are processes of their own."
    )
    stored = (
        f"Stored messages are on a file system of the kind {box['filesystem']}; {how['messages']:,} are read, a fifth of that is taken."
        f"{' Busway had a data folder in all work.' if how['data'] else ''}"
    )
    return [
        where(box, "loopback"),
        "",
        method,
        "",
        stored,
        "",
        *(f"- {version}" for version in dict.fromkeys(run.versions.values())),
    ]


def bar(goal: Goal) -> str:
    return f"{'≥' if goal.at_least else '≤'} {shown(goal.bar, goal.unit)}"


def shown(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f} x"
    return f"{value:,.0f} {unit}".strip() if value >= 100 or not unit else f"{value:.1f} {unit}"


def word(goal: Goal) -> str:
    return "PASS" if goal.reached else "MISS"
