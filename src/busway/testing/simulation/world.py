"""The simulated world: hosts with real brokers and clients on a simulated network, disks and clocks, from one seed.

Runs and user tests create it. A Python process has one world at a time and no other bus, since the world controls the
engine's clock.
"""

import asyncio
import gc
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

import busway
from busway._core import hold_clock
from busway.client.connection.core import abandon
from busway.common import environment
from busway.errors import BusError
from busway.settings import Settings
from busway.testing.simulation.disk import Disk
from busway.testing.simulation.loop import VirtualLoop
from busway.testing.simulation.network import Network
from busway.testing.simulation.process import CURRENT, Process, current
from busway.testing.simulation.trace import Trace
from busway.transport.schemes import carriers

if TYPE_CHECKING:
    from busway.broker.hub import Hub

SCHEME: Final = "sim"
PORT: Final = 7420
_RETRY: Final = 1.0
"""Seconds after which a broker that could not start is started again."""
_FAST: Final = Path("/dev/shm")  # noqa: S108, only the parent of a temporary folder


class Node:
    """The host of a broker, with its address and disk, and the current process of the broker."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        disk: Disk,
        *,
        stores: bool,
        skew: int,
        cluster: busway.Cluster | None = None,
    ) -> None:
        self.name = name
        self.url = f"{SCHEME}://{name}:{PORT}"
        self.settings = settings
        self.disk = disk
        self.stores = stores
        """True if the broker has a data folder."""
        self.skew = skew
        self.cluster = cluster
        self.server: busway.Server | None = None
        self.process: Process | None = None
        self.up = asyncio.Event()
        self.guids: list[str] = []
        """All guids that its processes had, the current one last. It gets a new one when another node replaced it."""
        self.lost = False
        """True if it never runs again and its data is lost."""
        self.starts = 0
        self.failed_starts = 0
        self.error_counts: Counter[str] = Counter()
        """Errors and faults that its processes counted."""

    @property
    def guid(self) -> str:
        """The guid of the process, or of the last one that ran."""
        return self.guids[-1] if self.guids else ""

    @property
    def serves(self) -> bool:
        """True if the broker runs and is not starting again."""
        return self.server is not None and self.server.state == "serving"

    @property
    def hub(self) -> "Hub":
        """The hub of the running broker, in which checks and faults read its state."""
        if self.server is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.server._running()  # noqa: SLF001, no public call shows this state

    def collect_errors(self) -> None:
        """Add the errors that the process counted, before it ends."""
        if self.up.is_set() and self.server is not None and self.serves:
            stats = self.server.stats()
            self.error_counts.update({name: stats[name] for name in ("errors", "faults")})


class Captured(logging.Handler):
    """Records log messages with the name of their process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[str, logging.LogRecord]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "busway.simulation":
            return  # the loop records its failures; this one may be from an earlier world that is collected now
        process = CURRENT.get()
        self.records.append((process.name if process is not None else "", record))


class World:
    """A simulated world, used as a context manager. `run()` runs a coroutine in it."""

    def __init__(self, seed: int | str, *, lines: bool = False) -> None:
        self.seed = seed
        self.loop = VirtualLoop(self._pause)  # type: ignore[abstract]  # sockets and the like are refused
        self.trace = Trace(self.loop.time, lines=lines)
        self.network = Network(self.loop, self.random("network"), self.trace)
        self.nodes: dict[str, Node] = {}
        self.logged = Captured()
        self._dead: list[tuple[Process, list[asyncio.Task[Any]], object]] = []
        self._before: list[Callable[[], object]] = []
        self._folder = Path()

    def random(self, what: str) -> Random:
        """Return the random numbers for one purpose, which are independent of those for other purposes."""
        return Random(f"{self.seed}/{what}")  # noqa: S311, the numbers must be reproducible

    # Lifecycle.

    def __enter__(self) -> Self:
        if SCHEME in carriers:
            raise RuntimeError("a process can have one simulated world at a time: leave the other one first")
        self._folder = Path(tempfile.mkdtemp(prefix="busway-", dir=_FAST if _FAST.is_dir() else None))
        self.trace.folder = str(self._folder).encode()
        carriers[SCHEME] = self.network
        self._replace("time_ns", self.loop.time_ns)
        self._replace("monotonic", self.loop.time)
        self._replace("boottime", self.loop.time)
        self._replace("perf_counter", self.loop.time)
        self._replace("chance", _chance)
        self._replace("randbits", _randbits)
        self._replace("open_log", lambda *where, **how: _disk().open_log(*where, **how))
        self._replace("open_front", lambda **how: _disk().open_front(**how))
        self._replace("drop_log", lambda where: _disk().drop_log(where))
        self._replace("move_log", lambda where, place: _disk().move_log(where, place))
        self._replace("disk_space", lambda _: (1 << 40, 1 << 40))  # the real disk must not affect the run
        for name in ("busway", "asyncio"):
            logger = logging.getLogger(name)
            self._before.append(lambda logger=logger, old=logger.propagate: setattr(logger, "propagate", old))  # type: ignore[misc]
            logger.addHandler(self.logged)
            logger.propagate = False
        if gc.isenabled():
            self._before.append(gc.enable)
            gc.disable()  # its timing must not affect the run
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            self.crash(node)
        del carriers[SCHEME]
        self.loop.close()
        for process, tasks, _rest in self._dead:
            process.alive = False
            _silence(tasks)
        _silence([task for task in asyncio.all_tasks(self.loop) if not task.done()])
        self._dead.clear()
        abandon(self.loop)
        for name in ("busway", "asyncio"):  # last, since closing the coroutines of dead processes may log
            logging.getLogger(name).removeHandler(self.logged)
        for restore in reversed(self._before):
            restore()
        hold_clock(0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _replace(self, name: str, mine: object) -> None:
        old = getattr(environment, name)
        self._before.append(lambda: setattr(environment, name, old))
        setattr(environment, name, mine)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine to its end, and return its result."""
        return self.loop.run_until_complete(main)

    def _pause(self) -> float:
        """Return half the duration of a function in a thread."""
        process = CURRENT.get()
        node = self.nodes.get(process.host) if process is not None else None
        return 0.0001 if node is None else node.disk.pause()

    # Brokers.

    def add_node(
        self, name: str, settings: Settings, *, stores: bool, skew: int = 0, cluster: busway.Cluster | None = None
    ) -> Node:
        """Add a host for a broker. start() starts the broker."""
        disk = Disk(self.loop, self.random(f"disk {name}"), self._folder / name)
        node = self.nodes[name] = Node(name, settings, disk, stores=stores, skew=skew, cluster=cluster)
        return node

    def start(self, node: Node) -> None:
        """Start a broker. If it can't start, retry later."""
        if node.lost or (node.process is not None and node.process.alive):
            return
        self.network.dark.discard(node.name)
        node.starts += 1
        name = f"{node.name}#{node.starts}"
        process = node.process = Process(name, node.name, self.random(name), node.skew)
        process.disk = node.disk
        self.trace.add(f"{name} starts")
        self.loop.create_task(self._serve(node, process), name=f"start {name}", context=process.context)

    async def _serve(self, node: Node, process: Process) -> None:
        data = node.disk.folder if node.stores else None
        node.server = busway.serve(node.url, name=node.name, settings=node.settings, data=data, cluster=node.cluster)
        try:
            await node.server.start()
        except BusError as error:
            node.failed_starts += 1
            self.trace.add(f"{process.name} can't start: {error}")
            self.crash(node)
            self.loop.call_later(_RETRY, self.start, node, context=Context())
            return
        self.started(node)
        node.up.set()

    def started(self, node: Node) -> None:
        """Record the guid of a broker, which it may have changed."""
        if node.server is not None and node.server.guid not in node.guids:
            node.guids.append(node.server.guid)

    def crash(self, node: Node, *, power: bool = False) -> bool:
        """Kill the broker, or cut the power of its host. Return False if it was not running."""
        process = node.process
        if process is None or not process.alive:
            return False
        self.trace.add(f"{process.name} {'loses power' if power else 'is killed'}")
        node.collect_errors()
        node.up.clear()
        if power:
            self.network.dark.add(node.name)
        if node.server is not None:
            node.server._kill()  # noqa: SLF001 - exists for simulations
        self._died(process, node.server, reset=not power)
        node.disk.died(power=power)
        node.server = None
        return True

    def suspend(self, node: Node) -> bool:
        """Suspend the broker, as SIGSTOP does. Return False if it was not running."""
        process = node.process
        if process is None or not process.alive or process.held is not None:
            return False
        self.trace.add(f"{process.name} sleeps")
        process.held = []
        return True

    def wake(self, node: Node) -> None:
        """Resume a suspended broker, which then processes everything that arrived."""
        if node.process is not None and node.process.held is not None:
            self.trace.add(f"{node.process.name} wakes")
            self.loop.resume(node.process)

    def lose(self, node: Node) -> bool:
        """Destroy the host of a broker with its disk. Return False if the broker was not running."""
        lost = not node.lost and node.up.is_set() and self.crash(node, power=True)
        node.lost = node.lost or lost
        return lost

    def living(self) -> list[Node]:
        """Return the nodes that are not lost."""
        return [node for node in self.nodes.values() if not node.lost]

    async def stop(self, node: Node) -> bool:
        """Stop the broker gracefully. Return False if it was not running."""
        process, server = node.process, node.server
        if process is None or not process.alive or server is None or not node.up.is_set():
            return False
        self.trace.add(f"{process.name} is stopped")
        node.collect_errors()
        node.up.clear()
        stopping = self.loop.create_task(server.stop(), name=f"stop {process.name}", context=process.context)
        over = asyncio.Event()
        stopping.add_done_callback(lambda _: over.set())
        process.exit_callbacks.append(over.set)
        await over.wait()
        if process.alive:
            stopping.result()
            self.trace.add(f"{process.name} has stopped")
            self._died(process, server, reset=True)
            node.disk.died(power=False)
            node.server = None
        return True

    # Other processes.

    def launch(self, name: str, host: str, main: Callable[[], Coroutine[Any, Any, Any]], *, skew: int = 0) -> Process:
        """Start a program. It ends when main() returns or kill() is called; an error in it ends the run."""
        process = Process(name, host, self.random(name), skew)
        self.loop.create_task(self._program(main), name=name, context=process.context)
        return process

    async def _program(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            await main()
        except Exception as error:  # noqa: BLE001, raised by run()
            self.loop.fatal = error

    def kill(self, process: Process) -> bool:
        """Kill a program. Return False if it was not running."""
        if not process.alive:
            return False
        self.trace.add(f"{process.name} is killed")
        self._died(process, None, reset=True)
        return True

    def _died(self, process: Process, rest: object, *, reset: bool) -> None:
        # Keep its tasks referenced: garbage collection would run their cleanup, which a killed process does not.
        tasks = [task for task in self.loop.tasks() if getattr(task, "process", None) is process]
        process.alive = False
        self._dead.append((process, tasks, rest))
        self.network.died(process, reset=reset)
        for callback in process.exit_callbacks:
            callback()


def _chance() -> float:
    return current().chance.random()


def _randbits(bits: int) -> int:
    return current().chance.getrandbits(bits)


def _disk() -> Disk:
    if (disk := current().disk) is None:
        raise RuntimeError(f"{current().name} has no disk")
    return disk


def _silence(tasks: list[asyncio.Task[Any]]) -> None:
    """Close tasks of dead processes without warnings."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        with suppress(RuntimeError, BusError, asyncio.CancelledError):
            coroutine = task.get_coro()
            if coroutine is not None:
                coroutine.close()
