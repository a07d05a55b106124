"""Processes killed with SIGKILL: providers at work, and publishers of retained messages."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import busway
from tests.support.children import Child, Children
from tests.support.net import Net, gather, within

NEVER = 600.0
"""Seconds for one provider, beyond what a test waits: whoever is followed by the next one was found dead, not late."""

PROVIDER = """
import asyncio, sys, busway

address, name, asks = sys.argv[1], sys.argv[2], sys.argv[3] == "asks"

async def line():
    return await asyncio.to_thread(sys.stdin.readline)

async def ask(message):
    print("asked", flush=True)
    return (await line()) == "willing\\n"

async def work(message):
    print("works", flush=True)
    await line()
    return f"{name} did {message.text}"

async def main():
    async with busway.connect(address, name=name) as bus:
        async with bus.serve("work", work, shared=True, ask=ask if asks else None):
            print("serves", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""

PUBLISHER = """
import asyncio, sys, busway

async def main():
    async with busway.connect(sys.argv[1], name="hdb") as bus:
        await bus.post("proc/hdb", "up", fields={"pid": 1})
        await bus.pin("config/hdb", "{}")
        print("posted", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def providers(children: Children, address: str, *, asks: bool = False) -> list[Child]:
    made = []
    for name in ("one", "two"):
        child = await children.start(PROVIDER, address, name, "asks" if asks else "", name=name)
        await child.says("serves")
        made.append(child)
    return made


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children()
    async with children.stack:
        yield children


async def first_to_say(children: list[Child], expected: str) -> list[Child]:
    """The children, with the one in front that says this first; the others have said nothing yet."""
    lines = {asyncio.ensure_future(child.line()): child for child in children}
    done, waiting = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED)
    for line in waiting:
        line.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    (line,) = done
    assert line.result() == expected
    return [lines[line], *(child for child in children if child is not lines[line])]


async def test_the_second_answers_what_the_first_was_killed_at(net: Net, children: Children) -> None:
    server = await net.serve(provider_timeout=NEVER)
    client = await net.connect()
    both = await providers(children, server.addresses[0])
    for each in (None, NEVER):
        asking = asyncio.ensure_future(client.request("work", "this", timeout=None, each=each))
        dying, other = await first_to_say(both, "works")
        await dying.kill()
        await other.says("works")
        other.tell("go")
        assert (await within(asking)).text == f"{other.name} did this"
        both = [other, await children.start(PROVIDER, server.addresses[0], dying.name, "", name=dying.name)]
        await both[1].says("serves")


async def test_one_killed_while_it_is_asked_is_not_waited_for(net: Net, children: Children) -> None:
    server = await net.serve(provider_timeout=NEVER)
    client = await net.connect()
    dying, other = await providers(children, server.addresses[0], asks=True)
    for told in ("willing", "unwilling"):
        asking = asyncio.ensure_future(client.request("work", "this", timeout=None))
        await dying.says("asked")
        await other.says("asked")
        await dying.kill()
        other.tell(told)
        if told == "willing":
            await other.says("works")
            other.tell("go")
            assert (await within(asking)).text == f"{other.name} did this"
            dying = await children.start(PROVIDER, server.addresses[0], "three", "asks", name="three")
            await dying.says("serves")
        else:
            with pytest.raises(busway.NoResponders):
                await within(asking)


async def test_one_killed_after_it_said_that_it_is_willing(net: Net, children: Children) -> None:
    """Both are willing; the one that got the request dies, and the other's word still counts."""
    server = await net.serve(provider_timeout=NEVER)
    client = await net.connect()
    both = await providers(children, server.addresses[0], asks=True)
    asking = asyncio.ensure_future(client.request("work", "this", timeout=None))
    for child in both:
        await child.says("asked")
        child.tell("willing")
    dying, other = await first_to_say(both, "works")
    await dying.kill()
    await other.says("works")
    other.tell("go")
    assert (await within(asking)).text == f"{other.name} did this"


@pytest.mark.parametrize("asks", [False, True])
async def test_the_dead_one_is_named_among_the_failed(net: Net, children: Children, asks: bool) -> None:
    server = await net.serve(provider_timeout=NEVER)
    client = await net.connect()
    dying, other = await providers(children, server.addresses[0], asks=asks)
    asking = asyncio.ensure_future(client.request_all("work", "this", timeout=None))
    for child in (dying, other):
        if asks:
            await child.says("asked")
            child.tell("willing")
        await child.says("works")
    await dying.kill()
    other.tell("go")
    replies = await within(asking)
    assert [(reply.sender, reply.text) for reply in replies] == [(other.name, f"{other.name} did this")]
    (failed,) = replies.failed
    assert (failed.sender, type(failed.error)) == (dying.name, busway.ServiceGone)
    assert dying.name in str(failed.error)


async def test_both_are_killed(net: Net, children: Children) -> None:
    server = await net.serve(provider_timeout=NEVER)
    client = await net.connect()
    both = await providers(children, server.addresses[0])
    single = asyncio.ensure_future(client.request("work", "this", timeout=None))
    dying, other = await first_to_say(both, "works")
    gathered = asyncio.ensure_future(client.request_all("work", "this", timeout=None))
    for child in both:
        await child.says("works")
    await dying.kill()
    await other.says("works")
    await other.kill()
    with pytest.raises(busway.ServiceGone):
        await within(single)
    replies = await within(gathered)
    assert (replies, {failed.sender for failed in replies.failed}) == ([], {"one", "two"})
    with pytest.raises(busway.NoResponders):
        await client.request("work", timeout=None)


async def test_the_posts_of_a_killed_publisher_are_withdrawn_after_the_grace(net: Net, children: Children) -> None:
    server = await net.serve(grace=0.2)
    watcher = await net.connect()
    async with watcher.subscribe("**", watch=True) as watching:
        publisher = await children.start(PUBLISHER, server.addresses[0])
        await publisher.says("posted")
        assert [message.kind for message in await gather(watching, 2)] == ["post", "pin"]
        await publisher.kill()
        (gone,) = await gather(watching, 1)
        assert (gone.kind, gone.topic, gone.payload, gone.fields) == ("withdrawn", "proc/hdb", b"up", {"pid": 1})
        assert gone.sender == "hdb"
        assert [message.kind for message in await watcher.kept()] == ["pin"]
