"""Makes the Spark session of Busway's jobs, or takes the one that is there."""

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


class NeedsSpark(BusError):  # noqa: N818 - says what is missing, as the errors of the bus do
    """PySpark is not installed, or can't be used so; the reason says what to do."""


def require() -> None:
    """See to it that PySpark and Java are there, and that Spark's workers run on this interpreter. Raises NeedsSpark, NeedsJava."""
    try:
        import pyspark.sql  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pyarrow"}:
            raise
        raise NeedsSpark(f"this needs {error.name}: {install_command('spark')}") from None
    java.use()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def settings(master: str | None = None, conf: Mapping[str, str] | None = None, *, ui: bool = False) -> dict[str, str]:
    """The settings of a session for this master; those that are given win. No master: this machine, all its cores."""
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
            # As many as can run: each of them costs, and the data of one machine needs no more.
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
    """A Spark session: the one that is there, or a new one for this master (`local[2]`, `spark://host:7077`, `sc://host:15002`).

    Under spark-submit master and settings are those that it was given. `log`: a file for what Spark's own process says, instead of stderr.
    """
    require()
    from pyspark import SparkContext  # noqa: PLC0415 - heavy
    from pyspark.conf import SparkConf  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if (there := SparkSession.getActiveSession()) is not None:
        return _adapted(there, master, conf or {})
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
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # what Spark's parts take for the name of this machine
    chosen = dict(conf or {}) if submitted else settings(master, conf, ui=ui)
    if submitted and master is not None:
        chosen["spark.master"] = master
    spark_conf = SparkConf(loadDefaults=submitted).setAppName(name).setAll(list(chosen.items()))
    if log is not None and not submitted and SparkContext._gateway is None:  # noqa: SLF001 - whether Java runs already
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            gateway = launch_gateway(spark_conf, {"stderr": errors})  # type: ignore[no-untyped-call]
        SparkContext(conf=spark_conf, gateway=gateway)
    made = builder.config(conf=spark_conf).getOrCreate()
    return made


def _adapted(there: "SparkSession", master: str | None, conf: Mapping[str, str]) -> "SparkSession":
    runs_on = there.conf.get("spark.master", "")
    if master is not None and runs_on and master != runs_on:
        raise NeedsSpark(f"there is a Spark session on {runs_on} in this process, so none on {master}: stop it first")
    for key, value in conf.items():
        there.conf.set(key, value)
    return there


def _memory() -> int:
    """For a driver that does all the work: a quarter of what the machine has, between one and eight gigabytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(total // 4, _GIGABYTE), 8 * _GIGABYTE)
