"""`busway.run` and signals, in processes of their own: handlers finish, a second signal ends at once."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

import busway
from tests.support.net import within

WORKER = """
import asyncio, logging, sys
if {plain}:
    sys.modules["uvloop"] = None
import busway

async def work(message):
    print("begun", flush=True)
    try:
        await asyncio.to_thread(sys.stdin.readline)
    finally:
        print("done", flush=True)

async def main():
    async with busway.connect({address!r}) as bus, bus.channel("orders", "billing", handler=work):
        print("ready", flush=True)
        await asyncio.Event().wait()

logging.basicConfig()
busway.run(main(){more})
print("not reached")
"""


class Program:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        return (await within(self.process.stdout.readline())).decode().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def release(self) -> None:
        self.process.stdin.write(b"\n")

    async def end(self) -> tuple[int, str, str]:
        out, err = await within(self.process.communicate())
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
async def start():
    running: list[asyncio.subprocess.Process] = []

    async def begin(text: str) -> Program:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdin=pipe, stdout=pipe, stderr=pipe)
        running.append(process)
        return Program(process)

    yield begin
    for process in running:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def orders(tmp_path: Path):
    """A server and a client, a stream `orders`."""
    async with busway.serve("tcp://127.0.0.1:0", data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("orders", ["orders"], store="disk")
        yield server, bus


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_handler_under_way_finishes_and_is_acknowledged(start, orders, number, *, plain: bool) -> None:
    server, bus = orders
    worker = await start(WORKER.format(plain=plain, address=server.addresses[0], more=""))
    assert await worker.line() == "ready"
    await bus.publish("orders", b"1", durable=True)
    assert await worker.line() == "begun"
    worker.signal(number)
    worker.release()
    code, out, err = await worker.end()
    assert out == "done\n"
    assert code == {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[number]
    assert "Task was destroyed" not in err
    async with bus.channel("orders", "billing", window=0) as channel:
        with pytest.raises(busway.Timeout):
            await channel.take(1, timeout=0.2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_ends_at_once(start, orders, number) -> None:
    server, bus = orders
    worker = await start(WORKER.format(plain=False, address=server.addresses[0], more=", drain=3600"))
    assert await worker.line() == "ready"
    await bus.publish("orders", b"1", durable=True)
    assert await worker.line() == "begun"
    worker.signal(number)
    worker.signal(number)
    # Two of the same number that wait at a time are one: then the process needs a third.
    while worker.process.returncode is None:
        await asyncio.sleep(0.2)
        if worker.process.returncode is None:
            worker.signal(number)
    code, out, _ = await worker.end()
    assert (code, out) == (-number, "")


async def test_the_time_to_drain_ends(start, orders) -> None:
    server, bus = orders
    text = WORKER.format(plain=False, address=server.addresses[0], more=", drain=0.1")
    text = text.replace("asyncio.to_thread(sys.stdin.readline)", "asyncio.Event().wait()")
    worker = await start(text.replace(") as bus", ", drain=3600) as bus"))
    assert await worker.line() == "ready"
    await bus.publish("orders", b"1", durable=True)
    assert await worker.line() == "begun"
    worker.signal(signal.SIGTERM)
    code, out, err = await worker.end()
    assert (code, out) == (143, "done\n"), err
    assert "not drained within 0.1 s" in err


async def test_a_main_that_returns_by_itself(start) -> None:
    program = await start(
        "import asyncio, busway\n"
        "async def main():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "    except asyncio.CancelledError:\n"
        "        return 5\n"
        "print(busway.run(main()))\n"
    )
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert (await program.end())[:2] == (0, "5\n")


async def test_handlers_of_the_program_are_left_to_it(start) -> None:
    program = await start(
        "import asyncio, signal, busway\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('own', flush=True))\n"
        "async def main():\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "busway.run(main())\n"
    )
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.line() == "own"
    assert program.process.returncode is None


async def test_a_blocking_program_ends_in_order_by_one_line(start, orders) -> None:
    """As docs/howto/sync.md says."""
    server, bus = orders
    worker = await start(
        "import signal, sys, threading, busway.sync\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "def work(message):\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print('done', flush=True)\n"
        f"with busway.sync.connect({server.addresses[0]!r}) as bus:\n"
        "    with bus.channel('orders', 'billing', handler=work):\n"
        "        print('ready', flush=True)\n"
        "        threading.Event().wait()\n"
    )
    assert await worker.line() == "ready"
    await bus.publish("orders", b"1", durable=True)
    assert await worker.line() == "begun"
    worker.signal(signal.SIGTERM)
    worker.release()
    code, out, _ = await worker.end()
    assert (code, out) == (143, "done\n")
    async with bus.channel("orders", "billing", window=0) as channel:
        with pytest.raises(busway.Timeout):
            await channel.take(1, timeout=0.2)


def test_what_is_no_coroutine() -> None:
    with pytest.raises(ValueError, match="takes a coroutine"):
        busway.run(5)  # type: ignore[arg-type]
