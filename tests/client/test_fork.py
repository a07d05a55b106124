"""A forked child gets a clear error from inherited clients, and can connect itself."""

import asyncio
import sys

from tests.support.net import Net, within

PROGRAM = """
import asyncio, os, sys, busway

async def main():
    bus = await busway.connect(sys.argv[1])
    subscription = await bus.subscribe("t")
    service = await bus.serve("s")
    child = os.fork()
    if child == 0:
        told = []
        for call in (
            lambda: bus.publish("t", b""),
            lambda: bus.publish("t", b"", confirm=True),
            lambda: bus.publish_many("t", [b""]),
            lambda: bus.push("t"),
            lambda: bus.request("s"),
            lambda: bus.subscribe("u"),
            lambda: bus.serve("u"),
            lambda: subscription.recv(),
            lambda: service.recv(),
            lambda: bus.flush(),
        ):
            try:
                await call()
            except busway.Forked as error:
                told.append(str(error))
            except BaseException as error:
                told.append(f"WRONG {error!r}")
            else:
                told.append("WRONG: nothing was raised")
        print(*told, sep="\\n", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    await bus.publish("t", b"the parent goes on")
    print((await subscription.recv(timeout=60)).text)
    await bus.close()

asyncio.run(main())
"""

ANEW = """
import asyncio, os, sys, busway

async def once(text):
    async with busway.connect(sys.argv[1]) as bus, bus.subscribe("t") as subscription:
        await bus.publish("t", text)
        print((await subscription.recv(timeout=60)).text, flush=True)

asyncio.run(once("parent"))
child = os.fork()
if child == 0:
    asyncio.run(once("child"))
    os._exit(0)
os.waitpid(child, 0)
"""


async def run(program: str, *arguments: str) -> list[str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await within(child.communicate())
    assert child.returncode == 0
    return out.decode().splitlines()


async def test_what_was_inherited_says_so(net: Net) -> None:
    server = await net.serve()
    *told, parent = await run(PROGRAM, server.addresses[0])
    assert len(told) == 10
    assert not [line for line in told if line.startswith("WRONG")]
    assert all("connect again" in line for line in told)
    assert parent == "the parent goes on"


async def test_a_child_may_connect_anew(net: Net) -> None:
    server = await net.serve()
    assert await run(ANEW, server.addresses[0]) == ["parent", "child"]
