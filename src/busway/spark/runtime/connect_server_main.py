"""The process that keeps Spark for one pipeline: a Connect server on this machine with its catalog in the state folder.

`python -m busway.spark.runtime.connect_server_main` is started by busway.spark.runtime.connect_server; it ends when it is asked to, or when nobody has used it for a while.
"""

import argparse
import fcntl
import json
import os
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from busway.spark.runtime.session import LOOPBACK, session

_LOOK: Final = 1.0


def settings(state: Path, port: int) -> dict[str, str]:
    """Those that make a session a server whose tables outlive it."""
    derby = state / "catalog"
    options = [
        f"-Dlog4j2.configurationFile={(Path(__file__).parents[1] / 'log4j2.properties').as_uri()}",
        f"-Dderby.stream.error.file={state / 'derby.log'}",
    ]
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (state / "tables").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={derby};create=true",
        "spark.hadoop.hive.metastore.warehouse.dir": (state / "tables").as_uri(),
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.sql.connect.serverStacktrace.enabled": "false",
        # Each flow starts Pythons of its own, for which Spark waits ten seconds and no longer.
        "spark.sql.pipelines.execution.maxConcurrentFlows": str(os.cpu_count() or 1),
        "spark.driver.extraJavaOptions": " ".join(options),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="busway.spark.runtime.connect_server_main")
    parser.add_argument("state", type=Path)
    parser.add_argument("--master")
    parser.add_argument("--idle", type=float, required=True, help="seconds without use after which it ends")
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    state: Path = given.state
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    conf = settings(state, port=0) | dict(one.split("=", 1) for one in given.conf)
    alive = (state / "keeper").open("wb")
    fcntl.flock(alive, fcntl.LOCK_EX)  # held until this process is gone: so others know that it lives
    token = secrets.token_hex(16)
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
    os.chdir(state)
    spark: Any = session(given.master, name=f"busway {state.name}", conf=conf)
    for number in (signal.SIGTERM, signal.SIGINT):  # Spark has taken one of them for itself
        signal.signal(number, lambda *_: ended.set())
    package = spark.sparkContext._jvm.org.apache.spark.sql.connect.service  # noqa: SLF001 - as PySpark's own client asks
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    told = {"pid": os.getpid(), "port": service.localPort(), "token": token, "started": time.time()}
    told |= {"master": given.master or "", "conf": sorted(given.conf)}
    _write(state / "server.json", json.dumps(told))
    try:
        _keep(state / "use", given.idle, ended)
    finally:
        (state / "server.json").unlink(missing_ok=True)
        spark.stop()


def _keep(use: Path, idle: float, ended: threading.Event) -> None:
    """Until it is asked to end, or nobody has held the file for so many seconds."""
    used = time.monotonic()
    with use.open("ab") as file:
        while not ended.wait(_LOOK):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                used = time.monotonic()
                continue
            if time.monotonic() - used > idle:
                return  # still held: who comes now starts another
            fcntl.flock(file, fcntl.LOCK_UN)


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and for nobody else's eyes."""
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    main()
