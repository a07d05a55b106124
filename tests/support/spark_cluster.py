"""A Spark cluster on this machine: a master and workers as processes, from the package on PyPI."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Self

import pyspark

from busway.spark.runtime import java

PATIENCE = 600.0
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listening:
        return int(listening.getsockname()[1])


class Cluster:
    """Use as a context. Each worker has a process group, so that it can be killed with all its executors, as if the machine were gone."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._web = self._port = 0
        self._files = ExitStack()
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._lead()
            for number in range(self._count):
                own = ("--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g")
                work = ("--work-dir", str(self._folder / f"worker-{number}"))
                self.workers.append(self._start(f"worker-{number}", "worker.Worker", *own, *work, self.url))
            self._wait(self._count)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lead(self) -> None:
        """Start the master; on other ports if somebody else was faster, which ends it."""
        for last in (False, False, True):
            self._web, self._port = free_port(), free_port()
            ports = ("--port", str(self._port), "--webui-port", str(self._web))
            self._master = self._start("master", "master.Master", *ports)
            try:
                self._wait(0)
            except AssertionError:
                if last or self._master.poll() is None:
                    raise
            else:
                return

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, self._master):
            if process is not None:
                end(process)
        self._files.close()

    def alive(self) -> int:
        """Workers that the master counts on; -1 if it doesn't answer."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._web}/json/", timeout=5) as answer:
                told = json.load(answer)
        except (OSError, ValueError):  # a page for people: somebody else was faster with this port
            return -1
        return sum(worker["state"] == "ALIVE" for worker in told["workers"])

    def _wait(self, workers: int) -> None:
        limit = time.monotonic() + PATIENCE
        while self.alive() < workers:
            for process in (*self.workers, self._master):
                assert process is None or process.poll() is None, f"{process.args} ended: see {self._folder}"
            assert time.monotonic() < limit, f"the cluster has not started: see {self._folder}"
            time.sleep(0.1)

    def _start(self, name: str, kind: str, *words: str) -> "subprocess.Popen[bytes]":
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", LOOPBACK, *words]
        environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "256m"}
        environment["SPARK_DAEMON_JAVA_OPTS"] = "-Dspark.port.maxRetries=0"  # else it takes a port that nobody knows
        environment["JAVA_HOME"] = str(java.find().home)
        log: IO[bytes] = self._files.enter_context((self._folder / f"{name}.log").open("wb"))
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def end(process: "subprocess.Popen[bytes]", how: signal.Signals = signal.SIGKILL) -> None:
    """With everything that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    process.wait(PATIENCE)
