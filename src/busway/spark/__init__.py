"""Busway in Spark: a source and a sink by the name `busway`, and the jobs of the lake.

Spark finds the source by itself, through the module `pyspark_busway`; nothing has to be registered. Needs `busway[spark]`. The jobs
are imported when they are first asked for, so that the workers of Spark load no more than they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from busway.spark.runtime.java import NeedsJava
from busway.spark.runtime.session import NeedsSpark, session

if TYPE_CHECKING:
    from busway.spark.lake.archive import archive
    from busway.spark.lake.audit import AuditReport, Finding, audit
    from busway.spark.lake.compact import compact
    from busway.spark.lake.replay import Replayed, ReplayFailed, replay
    from busway.spark.lake.report.page import page
    from busway.spark.lake.stats import StatsReport, stats, stats_report
    from busway.spark.lake.table import sql, table

__all__ = [
    "AuditReport",
    "Finding",
    "NeedsJava",
    "NeedsSpark",
    "ReplayFailed",
    "Replayed",
    "StatsReport",
    "archive",
    "audit",
    "compact",
    "page",
    "replay",
    "session",
    "sql",
    "stats",
    "stats_report",
    "table",
]

_WHERE: Final = {
    "AuditReport": "audit",
    "Finding": "audit",
    "ReplayFailed": "replay",
    "Replayed": "replay",
    "StatsReport": "stats",
    "page": "report.page",
    "sql": "table",
    "stats_report": "stats",
}
"""The module of the lake that has a name, unless they have the same name."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.lake.{_WHERE.get(name, name)}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
