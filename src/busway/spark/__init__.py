"""Busway for Spark: the data source and sink `busway`, and the jobs of the lake. Needs the extra `busway[spark]`.

Spark finds the source through the module `pyspark_busway`, without registration. The jobs are imported on first use, so
that Spark's workers load only the modules that they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from busway.spark.runtime.java import NeedsJava
from busway.spark.runtime.session import NeedsSpark, session

if TYPE_CHECKING:
    from busway.spark.lake.archive import archive
    from busway.spark.lake.audit import AuditReport, Finding, audit
    from busway.spark.lake.replay import Replayed, ReplayFailed, replay
    from busway.spark.lake.report.page import page
    from busway.spark.lake.stats import StatsReport, stats, stats_report
    from busway.spark.lake.table import sql, table
    from busway.spark.lake.upgrade import upgrade
    from busway.spark.lake.upkeep import optimize, vacuum

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
    "optimize",
    "page",
    "replay",
    "session",
    "sql",
    "stats",
    "stats_report",
    "table",
    "upgrade",
    "vacuum",
]

_WHERE: Final = {
    "AuditReport": "audit",
    "Finding": "audit",
    "ReplayFailed": "replay",
    "Replayed": "replay",
    "StatsReport": "stats",
    "optimize": "upkeep",
    "page": "report.page",
    "sql": "table",
    "stats_report": "stats",
    "vacuum": "upkeep",
}
"""The module of busway.spark.lake that defines a name, unless module and name are the same."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.lake.{_WHERE.get(name, name)}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
