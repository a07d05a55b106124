"""`busway bench`: measures Busway with broker, publishers and subscribers as processes. Called by busway.cli.app.

The figures depend on the machine. benchmarks/ in the source tree compares Busway with other systems.
"""

import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import busway
from busway.cli.bench.worker import Job
from busway.cli.common import flags, terminal, values
from busway.transport import parse


class What(StrEnum):
    """The kinds of measurements."""

    THROUGHPUT = "throughput"
    STREAM = "stream"
    FANOUT = "fanout"
    GROUP = "group"
    REQUEST = "request"
    REQUESTS = "requests"


_ABOUT = {
    What.THROUGHPUT: "publish_many to batches(), one to one",
    What.STREAM: "one await per message, async for, one to one",
    What.FANOUT: "one to {subscribers}",
    What.GROUP: "a group of {subscribers}",
    What.REQUEST: "one request after another",
    What.REQUESTS: "64 requests in flight",
}


def bench(
    what: Annotated[
        list[What] | None, typer.Argument(help="What to measure. Default: everything.", show_default=False)
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Measure the server at this address instead of starting one. BUSWAY_URL is not used.",
            metavar="ADDRESS",
        ),
    ] = None,
    unix: Annotated[
        bool, typer.Option("--unix", help="Use a Unix socket instead of TCP for the started server.")
    ] = False,
    size: Annotated[
        int, typer.Option("--size", help="Size of a payload.", parser=values.size, metavar="SIZE", show_default="128")
    ] = 128,
    count: Annotated[
        int,
        typer.Option("--count", "-n", help="Messages per run.", parser=values.count, metavar="N", show_default="1m"),
    ] = 1_000_000,
    requests: Annotated[
        int, typer.Option("--requests", help="Requests per run.", parser=values.count, metavar="N", show_default="20k")
    ] = 20_000,
    subscribers: Annotated[
        int, typer.Option("--subscribers", help="Number of subscribers for fanout and group.", min=1)
    ] = 8,
    repeat: Annotated[
        int, typer.Option("--repeat", help="Number of runs of each measurement; the median is shown.", min=1)
    ] = 3,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Measure throughput, fan-out and requests.

    busway bench
    busway bench throughput request --size 1k --json
    """
    if not 1 <= size <= 4 * 1024 * 1024:
        raise typer.BadParameter(f"--size: {size} bytes are out of range: give 1 byte to 4m")
    try:
        given = None if url is None else str(parse(values.connect_address(url)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    chosen = list(dict.fromkeys(what or list(What)))

    async def measure() -> None:
        results: list[dict[str, Any]] = []
        progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=terminal.notes,
            disable=quiet or not terminal.notes.is_terminal,
            transient=True,
        )
        async with _Broker.reach(given, unix=unix) as broker:
            with progress:
                for kind in chosen:
                    bench = _Bench(
                        broker, kind, size, requests if kind in (What.REQUEST, What.REQUESTS) else count, subscribers
                    )
                    task = progress.add_task(kind, total=bench.total * repeat)
                    runs = [await bench.run(progress, task, number) for number in range(repeat)]
                    results.append(_median(bench, runs))
        if json:
            terminal.record(
                {"version": busway.__version__, "size": size, "repeat": repeat, "url": broker.url, "results": results}
            )
        else:
            terminal.out.print(_table(results, size, broker.url))

    terminal.run(measure)


class _Broker:
    """The broker under test. Its CPU time is known only if this command started it."""

    def __init__(self, url: str, pid: int | None) -> None:
        self.url = url
        self._pid = pid

    @classmethod
    @contextlib.asynccontextmanager
    async def reach(cls, url: str | None, *, unix: bool) -> AsyncIterator["_Broker"]:
        if url is not None:
            async with busway.connect(url, reconnect=None):
                pass  # reports an unreachable broker once, instead of once per process
            yield cls(url, None)
            return
        import tempfile

        with tempfile.TemporaryDirectory(prefix="busway-bench-") as folder:
            where = ["--unix", f"{folder}/bus"] if unix else ["--tcp", "127.0.0.1:0"]
            async with _process("-m", "busway", "serve", *where, "--json", "--quiet") as process:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    raise busway.BusError("the broker of the benchmark did not start: run 'busway serve' to see why")
                yield cls(msgspec.json.decode(line)["addresses"][0], process.pid)

    def cpu(self) -> float | None:
        """Return the CPU seconds used so far, or None if they are unknown."""
        try:
            text = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return None
        spent = text.rpartition(")")[2].split()
        return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a Python process that is ended with the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


class _Worker:
    """A process of busway.cli.bench.worker: reports that it is ready, works after go(), and returns a result."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, stack: contextlib.AsyncExitStack, role: str, job: Job) -> "_Worker":
        arguments = ("-m", "busway.cli.bench.worker", role, msgspec.json.encode(job).decode())
        worker = cls(await stack.enter_async_context(_process(*arguments)))
        await worker._line("ready")
        return worker

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def result(self, report: Callable[[int], None] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = await self._line("result", report)
        return found

    async def _line(self, key: str, report: Callable[[int], None] | None = None) -> Any:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            found = msgspec.json.decode(line)
            if "error" in found:
                raise busway.BusError(f"a process of the benchmark failed: {found['error']}")
            if key in found:
                return found[key]
            if report is not None and "done" in found:
                report(found["done"])
        raise busway.BusError(f"a process of the benchmark ended early with exit code {await self._process.wait()}")


class _Bench:
    """Runs one kind of measurement with its worker processes."""

    def __init__(self, broker: _Broker, what: What, size: int, count: int, subscribers: int) -> None:
        self.what = what
        self.size = size
        self.about = _ABOUT[what].format(subscribers=subscribers)
        self._broker = broker
        self._receivers = subscribers if what in (What.FANOUT, What.GROUP) else 1
        self._count = max(count // self._receivers, 1) if what is What.FANOUT else count
        self.total = self._count

    async def run(self, progress: Progress, task: TaskID, number: int) -> dict[str, float]:
        done = number * self.total

        def report(now: int) -> None:
            progress.update(task, completed=done + min(now, self.total))

        of_requests = self.what in (What.REQUEST, What.REQUESTS)
        result = await (self._requests(report, number) if of_requests else self._messages(report, number))
        report(self.total)
        return result

    async def _messages(self, report: Callable[[int], None], number: int) -> dict[str, float]:
        each = self.what is What.STREAM
        group = "bench" if self.what is What.GROUP else ""
        job = Job(
            self._broker.url,
            f"bench/{self.what}/{os.getpid()}/{number}",
            self._count,
            self.size,
            each=each,
            group=group,
        )
        async with contextlib.AsyncExitStack() as stack:
            readers = [await _Worker.start(stack, "subscribe", job) for _ in range(self._receivers)]
            writer = await _Worker.start(stack, "publish", job)
            before = self._broker.cpu()
            for worker in (*readers, writer):
                worker.go()
            sent, *found = await asyncio.gather(writer.result(report), *(reader.result() for reader in readers))
            delivered = sum(result["received"] for result in found)
            expected = self._count if group else self._count * self._receivers
            if delivered < expected:
                missed = sum(result["missed"] for result in found)
                raise busway.BusError(
                    f"{self.what}: only {delivered} of {expected} messages arrived ({missed} were dropped)"
                )
            return self._rates(delivered, max(result["last"] for result in found) - sent["first"], before)

    async def _requests(self, report: Callable[[int], None], number: int) -> dict[str, float]:
        in_flight = 64 if self.what is What.REQUESTS else 1
        topic = f"bench/{self.what}/{os.getpid()}/{number}"
        job = Job(self._broker.url, topic, self._count, self.size, in_flight=in_flight)
        async with contextlib.AsyncExitStack() as stack:
            service = await _Worker.start(stack, "serve", job)
            requester = await _Worker.start(stack, "request", job)
            before = self._broker.cpu()
            service.go()
            requester.go()
            found = await requester.result(report)
            rates = self._rates(found["requests"], found["last"] - found["first"], before)
            return rates | {name: found[name] for name in ("p50", "p90", "p99", "p99.9")}

    def _rates(self, number: int, seconds: float, before: float | None) -> dict[str, float]:
        made = {"rate": number / seconds, "bytes": number * self.size / seconds}
        after = self._broker.cpu()
        if before is not None and after is not None:
            made["cpu"] = (after - before) / number * 1e6
        return made


def _median(bench: _Bench, runs: list[dict[str, float]]) -> dict[str, Any]:
    return {"what": bench.what.value, "about": bench.about} | {
        name: statistics.median(run[name] for run in runs) for name in runs[0]
    }


def _table(results: list[dict[str, Any]], size: int, url: str) -> Table:
    table = Table(
        title=f"{size}-byte payloads over {url.partition(':')[0]}", title_justify="left", box=None, pad_edge=False
    )
    for name in ("what", "", "per second", "MB/s", "p50 µs", "p99 µs", "broker CPU s per million"):
        table.add_column(name, justify="left" if name in ("what", "") else "right", header_style="cyan")
    for result in results:
        table.add_row(
            result["what"],
            result["about"],
            f"{result['rate']:,.0f}",
            f"{result['bytes'] / 1e6:,.1f}",
            *(f"{result[name] * 1e6:,.0f}" if name in result else "" for name in ("p50", "p99")),
            f"{result['cpu']:.3f}" if "cpu" in result else "",
        )
    return table
