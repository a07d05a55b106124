"""A PostgreSQL server of the tests' own: made in a folder for it, on a Unix socket and a free port of the loopback."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import psycopg
import pytest

USER = "busway"
MISSING = (
    "PostgreSQL's server programs (initdb, postgres) were not found, and the tests of the database store need them. "
    "On Debian or Ubuntu: apt-get install postgresql; on Fedora: dnf install postgresql-server; on macOS: brew install postgresql"
)


def programs() -> Path:
    """The folder with initdb and postgres. Debian keeps it out of the PATH."""
    found = [shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)]
    for initdb in filter(None, found):
        folder = Path(initdb).resolve().parent
        if (folder / "postgres").exists():
            return folder
    pytest.fail(MISSING, pytrace=False)


def unprivileged() -> str | None:
    """Whom the server runs as: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


class Postgres:
    """fsync is on, so that what it says is stored is stored."""

    def __init__(self) -> None:
        self.programs = programs()
        self.user = unprivileged()
        # A short path: that of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="bw-pg-", dir="/tmp"))
        self.log = self.folder / "log"
        self.data = self.folder / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        if self.user:
            shutil.chown(self.folder, self.user)
        made = subprocess.run(
            [self.programs / "initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            user=self.user,
            extra_groups=[] if self.user else None,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        assert self._process is None
        for _ in range(5):
            self.port = self.port or free_port()
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [
                        self.programs / "postgres",
                        *("-D", self.data, "-p", str(self.port), "-k", self.folder),
                        *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=on", "-c", "restart_after_crash=off"),
                    ],
                    user=self.user,
                    extra_groups=[] if self.user else None,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if self._ready():
                return
            self._process = None
            self.port = 0  # somebody else took it
        pytest.fail(f"PostgreSQL did not start:\n{self.log.read_text()[-2000:]}", pytrace=False)

    def _ready(self) -> bool:
        assert self._process is not None
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            if self._process.poll() is not None:
                return False
            try:
                self.connect().close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        self.kill()
        return False

    def stop(self) -> None:
        """As an operator stops it: connections are ended, nothing is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(30)

    def kill(self) -> None:
        """SIGKILL to the server and to each of its processes, all of which are this one's."""
        process, self._process = self._process, None
        assert process is not None
        parent = psutil.Process(process.pid)
        parent.suspend()  # so that it starts no others meanwhile
        family = parent.children(recursive=True)
        parent.kill()
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        process.wait(30)
        psutil.wait_procs(family, 30)

    def remove(self) -> None:
        if self.running:
            self.kill()  # nobody needs what it would write before it ends
        shutil.rmtree(self.folder)

    def connect(self, schema: str = "public") -> psycopg.Connection:
        return psycopg.connect(self.url(schema), autocommit=True)

    def schema(self) -> str:
        """The name of a new, empty place for tables. A database for each test would take far longer."""
        name = f"t{uuid.uuid4().hex}"
        with self.connect() as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        return name

    def url(self, schema: str = "public", *, port: int | None = None, database: str = "postgres") -> str:
        """Over the Unix socket, or over TCP if a port is given."""
        options = f"options=-csearch_path%3D{schema}"
        if port is not None:
            return f"postgresql://{USER}@127.0.0.1:{port}/{database}?{options}"
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}&{options}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
