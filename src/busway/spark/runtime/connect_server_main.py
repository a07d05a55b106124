"""Process of the Spark Connect server of a pipeline, with its catalog in the state folder.

busway.spark.runtime.connect_server starts `python -m busway.spark.runtime.connect_server_main`. The process ends on
SIGTERM, or when no run has used it for the idle time.
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

_POLL: Final = 1.0
"""Seconds between two checks of the idle time."""


def settings(state: Path, port: int) -> dict[str, str]:
    """Return the settings of a session that is a server, with tables that outlive it."""
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
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other readers know no other type
        # Each flow starts Python processes, and Spark waits at most ten seconds for them.
        "spark.sql.pipelines.execution.maxConcurrentFlows": str(os.cpu_count() or 1),
        "spark.driver.extraJavaOptions": " ".join(options),
    }


def main() -> None:
    """Run the server until it is stopped or idle."""
    parser = argparse.ArgumentParser(prog="busway.spark.runtime.connect_server_main")
    parser.add_argument("state", type=Path)
    parser.add_argument("--master")
    parser.add_argument("--idle", type=float, required=True, help="seconds without use after which the server ends")
    parser.add_argument("--conf", action="append", default=[])
    arguments = parser.parse_args()
    state: Path = arguments.state
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    conf = settings(state, port=0) | dict(setting.split("=", 1) for setting in arguments.conf)
    alive = (state / "keeper").open("wb")
    fcntl.flock(alive, fcntl.LOCK_EX)  # held until this process ends, so that other processes see that it runs
    token = secrets.token_hex(16)
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
    os.chdir(state)
    spark: Any = session(arguments.master, name=f"busway {state.name}", conf=conf)
    for number in (signal.SIGTERM, signal.SIGINT):  # Spark has installed its own handler for SIGINT
        signal.signal(number, lambda *_: ended.set())
    package = spark.sparkContext._jvm.org.apache.spark.sql.connect.service  # noqa: SLF001 - as PySpark's client does
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    record = {"pid": os.getpid(), "port": service.localPort(), "token": token, "started": time.time()}
    record |= {"master": arguments.master or "", "conf": sorted(arguments.conf)}
    _write(state / "server.json", json.dumps(record))
    try:
        _wait_until_idle(state / "use", arguments.idle, ended)
    finally:
        (state / "server.json").unlink(missing_ok=True)
        spark.stop()


def _wait_until_idle(use: Path, idle: float, ended: threading.Event) -> None:
    """Wait until `ended` is set, or no process has locked the file for `idle` seconds."""
    used = time.monotonic()
    with use.open("ab") as file:
        while not ended.wait(_POLL):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                used = time.monotonic()
                continue
            if time.monotonic() - used > idle:
                return  # with the lock: the next run starts another server
            fcntl.flock(file, fcntl.LOCK_UN)


def _write(path: Path, text: str) -> None:
    """Replace a file atomically. Only its owner can read it, because it has the token."""
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    main()
