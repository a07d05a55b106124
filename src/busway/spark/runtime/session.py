"""Spark session of Busway's jobs: creates one, or reuses the active one. Called by users and the command line."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway.common.extras import install_command
from busway.errors import BusError
from busway.spark.runtime import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
_LOG: Final = Path(__file__).parents[1] / "log4j2.properties"
_GIGABYTE: Final = 1 << 30
_LOCAL: Final = re.compile(r"local(?:\[([0-9]+|\*)(?:,[0-9]+)?\])?")


class NeedsSpark(BusError):  # noqa: N818 - named after the requirement
    """PySpark is not installed, or can't be used in this way. The text says what to do."""


def require() -> None:
    """Check PySpark and Java, and let Spark's workers use this interpreter. Raises NeedsSpark, NeedsJava."""
    try:
        import pyspark.sql  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pyarrow"}:
            raise
        raise NeedsSpark(f"Busway for Spark needs {error.name}: {install_command('spark')}") from None
    java.use()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def settings(master: str | None = None, conf: Mapping[str, str] | None = None, *, ui: bool = False) -> dict[str, str]:
    """Return the settings of a session. `conf` overrides them. The default master is all cores of this machine."""
    master = master or "local[*]"
    made = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
    }
    if not master.startswith("sc://"):
        made["spark.master"] = master
    if local := _LOCAL.fullmatch(master):
        cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
        made |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.driver.memory": f"{_memory() >> 20}m",
            # One partition per core: further partitions cost time and bring nothing on one machine.
            "spark.sql.shuffle.partitions": str(max(cores, 2)),
        }
    made |= conf or {}
    return made


def session(
    master: str | None = None,
    name: str = "busway",
    conf: Mapping[str, str] | None = None,
    *,
    ui: bool = False,
    log: Path | None = None,
) -> "SparkSession":
    """Return the active Spark session, or a new one for a master (`local[2]`, `spark://host:7077`, `sc://host:15002`).

    Under spark-submit its own master and settings apply. `log`: a file for the output of Spark's process, instead of
    stderr. Raises NeedsSpark, NeedsJava.
    """
    require()
    from pyspark import SparkContext  # noqa: PLC0415 - heavy
    from pyspark.conf import SparkConf  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if (active := SparkSession.getActiveSession()) is not None:
        return _reuse(active, master, conf or {})
    builder: Any = SparkSession.builder
    made: SparkSession
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
        for key, value in (conf or {}).items():
            builder = builder.config(key, value)
        made = builder.getOrCreate()
        return made
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and _LOCAL.fullmatch(master or "local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # the address of this machine for Spark's components
    chosen = dict(conf or {}) if submitted else settings(master, conf, ui=ui)
    if submitted and master is not None:
        chosen["spark.master"] = master
    spark_conf = SparkConf(loadDefaults=submitted).setAppName(name).setAll(list(chosen.items()))
    if log is not None and not submitted and SparkContext._gateway is None:  # noqa: SLF001 - None until Java runs
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            gateway = launch_gateway(spark_conf, {"stderr": errors})  # type: ignore[no-untyped-call]
        SparkContext(conf=spark_conf, gateway=gateway)
    made = builder.config(conf=spark_conf).getOrCreate()
    return made


def _reuse(active: "SparkSession", master: str | None, conf: Mapping[str, str]) -> "SparkSession":
    """Apply settings to the active session. Raises NeedsSpark if it runs on another master."""
    used = active.conf.get("spark.master", "")
    if master is not None and used and master != used:
        raise NeedsSpark(f"this process has a Spark session on {used}, so none can start on {master}: stop it first")
    for key, value in conf.items():
        active.conf.set(key, value)
    return active


def _memory() -> int:
    """Return the memory of a local driver: a quarter of the machine's memory, between one and eight gigabytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(total // 4, _GIGABYTE), 8 * _GIGABYTE)
