"""The matrix: every native door, every verb, and every way to be allowed or refused."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import busway
from busway._core import VERBS
from busway.errors import Code
from tests.support.net import Certificates, within
from tests.support.users import UsersFile

DOORS = ("unix", "tcp", "tls")
ALLOWED, ELSEWHERE, DENIED = "open/a", "other/a", "open/closed"


class Door:
    """A broker with users that listens at one native door, and a client of its own process that may do everything."""

    def __init__(self, kind: str, folder: Path, certificates: Certificates) -> None:
        self.kind, self.folder, self.certificates = kind, folder, certificates
        self.users = UsersFile(folder / "users.toml")
        self.stack = AsyncExitStack()
        self.root: busway.Bus

    async def start(self) -> None:
        kinds = {"unix": f"unix:{self.folder / 'bus'}", "tcp": "tcp://127.0.0.1:0", "tls": "tls://127.0.0.1:0"}
        tls = None
        if self.kind == "tls":
            tls = busway.TLS(cert=self.certificates.server, key=self.certificates.server_key)
        server = busway.serve(kinds[self.kind], tls=tls, users=self.users.path)
        self.server = await self.stack.enter_async_context(server)
        self.root = await self.stack.enter_async_context(self.server.connect(name="root"))
        for topic in (ALLOWED, ELSEWHERE, DENIED):
            await self.root.create_stream(topic.replace("/", "-"), [topic])
            await self.root.publish(topic, b"stored", durable=True)
            service = self.root.serve(f"{topic}/service", lambda message: b"reply")
            await self.stack.enter_async_context(service)
            await self.stack.enter_async_context(self.root.subscribe(f"{topic}/push", handler=lambda message: None))

    def client(self, **options: Any) -> busway.Bus:
        tls = busway.TLS(ca=self.certificates.ca) if self.kind == "tls" else None
        return busway.connect(self.server.addresses[0], tls=tls, timeout=10, **options)


@pytest.fixture(params=DOORS)
async def door(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> AsyncIterator[Door]:
    made = Door(request.param, tmp_path, certificates)
    async with made.stack:
        # Nobody but users of the file gets in: the uid of the tests belongs to a user without grants.
        made.users.user("other", uids=[os.getuid() + 1])
        await made.start()
        yield made


async def publish(bus: busway.Bus, topic: str) -> None:
    await bus.publish(topic, b"", confirm=True)


async def push(bus: busway.Bus, topic: str) -> None:
    await bus.push(f"{topic}/push", b"")


async def request(bus: busway.Bus, topic: str) -> None:
    await bus.request(f"{topic}/service", b"")


async def store(bus: busway.Bus, topic: str) -> None:
    await bus.publish(topic, b"", durable=True)


async def retain(bus: busway.Bus, topic: str) -> None:
    await bus.pin(topic, b"")
    await bus.post(f"{topic}/post", b"")


async def subscribe(bus: busway.Bus, topic: str) -> None:
    async with bus.subscribe(f"{topic}/**"):
        pass


async def serve(bus: busway.Bus, topic: str) -> None:
    async with bus.serve(f"{topic}/own", lambda message: b""):
        pass


async def read(bus: busway.Bus, topic: str) -> None:
    name = topic.replace("/", "-")
    reply = await bus.request("$bus/read", b'{"stream": "%s", "pattern": "%s"}' % (name.encode(), topic.encode()))
    assert b"stored" in bytes(reply.payload)


async def consume(bus: busway.Bus, topic: str) -> None:
    async with bus.channel(topic.replace("/", "-"), "jobs") as jobs:
        await (await jobs.recv()).ack()


async def manage(bus: busway.Bus, topic: str) -> None:
    await bus.create_stream("new", [f"{topic}/new"])
    await bus.remove_stream("new")


async def observe(bus: busway.Bus, topic: str) -> None:
    async with bus.subscribe(f"{topic}/**", listen=True):
        pass


async def admin(bus: busway.Bus, topic: str) -> None:
    del topic
    try:
        await bus.request("$bus/cluster/promote", b'{"node": "nobody"}')
    except busway.BusError as error:
        if error.code != Code.REFUSED:  # this broker is in no cluster
            raise


USES: dict[str, Callable[[busway.Bus, str], Awaitable[None]]] = {
    use.__name__: use
    for use in (publish, push, request, store, retain, subscribe, serve, read, consume, manage, observe, admin)
}
ALSO = {"observe": ["subscribe **"]}
"""Grants that a use needs besides its own verb."""


def test_no_verb_is_missing() -> None:
    assert tuple(USES) == VERBS


def grant(door: Door, verb: str) -> None:
    """Let alice use one verb below `open`, but not on what the list of denies has."""
    pattern, denied = ("$bus/**", "$bus/other") if verb == "admin" else ("open/**", f"{DENIED}/**")
    door.users.user("alice", [f"{verb} {pattern}", *ALSO.get(verb, [])], [f"{verb} {denied}"])
    assert door.server.reload_users()


@pytest.mark.parametrize("verb", USES)
async def test_a_user_may_do_what_is_granted_and_nothing_else(door: Door, verb: str) -> None:
    grant(door, verb)
    async with door.client(user="alice", password="alice") as bus:
        await within(USES[verb](bus, ALLOWED))
        places = [] if verb == "admin" else [ELSEWHERE, DENIED]
        for topic in places:
            with pytest.raises(busway.Forbidden) as caught:
                await within(USES[verb](bus, topic))
            assert caught.value.code == Code.FORBIDDEN
            assert f"may not {verb}" in str(caught.value)
            assert topic in str(caught.value)


@pytest.mark.parametrize("verb", USES)
async def test_other_verbs_do_not_help(door: Door, verb: str) -> None:
    others = ",".join(other for other in VERBS if other != verb)
    door.users.user("alice", [f"{others} **", f"{others} $bus/**"])
    assert door.server.reload_users()
    async with door.client(user="alice", password="alice") as bus:
        with pytest.raises(busway.Forbidden, match=f"may not {verb}"):
            await within(USES[verb](bus, ALLOWED))


@pytest.mark.parametrize("verb", USES)
async def test_a_deny_on_the_topic_wins(door: Door, verb: str) -> None:
    door.users.user("alice", ["all **", "all $bus/**"], [f"{verb} {ALLOWED}/**", f"{verb} $bus/**"])
    assert door.server.reload_users()
    async with door.client(user="alice", password="alice") as bus:
        with pytest.raises(busway.Forbidden, match=f"may not {verb}"):
            await within(USES[verb](bus, ALLOWED))


@pytest.mark.parametrize("verb", USES)
async def test_a_removed_user_can_do_nothing_more(door: Door, verb: str) -> None:
    grant(door, verb)
    async with door.client(user="alice", password="alice", reconnect=[0.01]) as bus:
        await within(USES[verb](bus, ALLOWED))
        door.users.remove("alice")  # the broker notices by itself
        async with asyncio.timeout(60):
            async for event in bus.events():
                if event.kind == "closed":
                    break
        with pytest.raises(busway.Closed, match="credentials were refused"):
            await USES[verb](bus, ALLOWED)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": "alice"},
        {"user": "alice", "password": "wrong"},
        {"user": "bob", "password": "alice"},
        {"user": "alice", "token": "a.b.c"},
        {"credentials": "alice"},
    ],
    ids=str,
)
async def test_strangers_are_refused_alike(door: Door, options: dict[str, Any]) -> None:
    grant(door, "publish")
    with pytest.raises(busway.Forbidden) as caught:
        await within(door.client(**options).__aenter__())
    assert (caught.value.code, str(caught.value)) == (Code.UNAUTHORIZED, "the credentials were refused")
