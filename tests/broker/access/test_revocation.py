"""Revocation: what a change of the users file does to clients that are connected."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import busway
from tests.support.net import within
from tests.support.users import UsersFile


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    return UsersFile(tmp_path / "users.toml").user("alice", ["all a/**"])


def connect(server: busway.Server, **options: object) -> busway.Bus:
    return busway.connect(server.addresses[0], user="alice", password="alice", reconnect=[0.01], **options)


async def event(bus: busway.Bus, kind: str) -> None:
    async with asyncio.timeout(60):
        async for one in bus.events():
            if one.kind == kind:
                return


async def test_more_grants_count_at_once_and_without_a_new_connection(users: UsersFile) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, connect(server) as bus:
        with pytest.raises(busway.Forbidden):
            await bus.publish("b", b"", confirm=True)
        users.user("alice", ["all a/**", "publish b"])
        assert server.reload_users()
        assert await bus.publish("b", b"", confirm=True) == 0
        assert server.stats()["connections_opened"] == 1


async def test_fewer_grants_end_what_is_no_longer_allowed_and_nothing_else(users: UsersFile) -> None:
    users.user("bob", ["all a/**"])
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, server.connect() as root:
        async with connect(server) as bus, bus.subscribe("a/x") as allowed, bus.subscribe("a/y") as lost:
            async with busway.connect(server.addresses[0], user="bob", password="bob") as bob:
                users.user("alice", ["all a/x/**"])
                await event(bus, "resumed")
                with pytest.raises(busway.Forbidden):
                    await within(lost.recv())
                await root.publish("a/x", b"still")
                assert (await within(allowed.recv())).payload == b"still"
                assert await bob.publish("a/y", b"", confirm=True) == 0
                assert bob.state == "connected"


async def test_a_filtered_subscription_follows_new_grants(users: UsersFile) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, server.connect() as root:
        async with connect(server) as bus, bus.subscribe("re:.*/x") as got:
            await root.publish("b/x", b"hidden")
            await root.publish("a/x", b"1")
            assert (await within(got.recv())).payload == b"1"
            users.user("alice", ["all a/**", "subscribe b/**"])
            assert server.reload_users()
            await root.publish("b/x", b"2")
            assert (await within(got.recv())).payload == b"2"


async def test_leases_and_posts_of_a_removed_user_end_at_once(users: UsersFile) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, server.connect() as root:
        await root.create_stream("jobs", ["a/jobs"])
        async with connect(server) as bus, bus.channel("jobs", "c", lease=3600) as jobs:
            await bus.post("a/here", b"up")
            await root.publish("a/jobs", b"job", durable=True)
            await within(jobs.recv())
            async with root.channel("jobs", "c") as other, root.subscribe("a/here", watch=True) as seen:
                assert (await within(seen.recv())).payload == b"up"
                users.remove("alice")
                assert (await within(other.recv())).payload == b"job"
                assert (await within(seen.recv())).kind == "withdrawn"


async def test_an_error_in_the_file_keeps_the_old_users(users: UsersFile, caplog: pytest.LogCaptureFixture) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, connect(server) as bus:
        users.write("[users.alice]\nallow = ['publsh a']\n")
        assert not server.reload_users()
        assert "line 2" in caplog.text
        assert await bus.publish("a/x", b"", confirm=True) == 0
        users.write()
        assert server.reload_users()


async def test_a_new_password_ends_the_sessions_of_the_old_one(users: UsersFile) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, connect(server) as bus:
        users.user("alice", ["all a/**"], password="new")
        await event(bus, "closed")
        async with busway.connect(server.addresses[0], user="alice", password="new"):
            pass


async def test_every_node_of_a_cluster_notices(users: UsersFile) -> None:
    async with AsyncExitStack() as stack:
        servers: list[busway.Server] = []
        for number in range(3):
            known = [server.addresses[0] for server in servers]
            server = busway.serve(
                "tcp://127.0.0.1:0", name=f"n{number}", cluster="c", servers=known, key="k" * 16, users=users.path
            )
            servers.append(await stack.enter_async_context(server))
        clients = [await stack.enter_async_context(connect(server, learn=False)) for server in servers]
        waiting = [asyncio.create_task(event(bus, "closed")) for bus in clients]
        await asyncio.sleep(0)
        users.remove("alice")
        await asyncio.gather(*waiting)


async def test_a_cluster_with_users_needs_a_key(users: UsersFile) -> None:
    with pytest.raises(ValueError, match="needs a key"):
        busway.serve("tcp://127.0.0.1:0", cluster="c", users=users.path)
