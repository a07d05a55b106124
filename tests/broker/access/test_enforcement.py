"""Enforcement: what grants mean for wildcards, retained and stored messages, channels, lists and replies."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import busway
from busway.errors import Code
from tests.support.net import within
from tests.support.users import UsersFile

Connect = Callable[..., Awaitable[busway.Bus]]


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    return UsersFile(tmp_path / "users.toml")


class Broker:
    """A broker with users, a client that may do everything, and clients of users."""

    def __init__(self, server: busway.Server, root: busway.Bus, users: UsersFile) -> None:
        self.server, self.root, self.users = server, root, users
        self.clients: list[busway.Bus] = []

    async def user(self, *allow: str, deny: tuple[str, ...] = (), name: str = "alice") -> busway.Bus:
        """A client of a new user with these grants."""
        self.users.user(name, allow, deny)
        assert self.server.reload_users()
        bus = busway.connect(self.server.addresses[0], user=name, password=name)
        self.clients.append(bus)
        return await bus.__aenter__()


@pytest.fixture
async def broker(users: UsersFile) -> AsyncIterator[Broker]:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, server.connect() as root:
        made = Broker(server, root, users)
        yield made
        for bus in made.clients:
            await bus.close()


async def forbidden(work: Awaitable[Any], text: str) -> None:
    with pytest.raises(busway.Forbidden) as caught:
        await within(work)
    assert caught.value.code == Code.FORBIDDEN
    assert text in str(caught.value)


async def test_a_publish_with_wildcards_is_allowed_only_as_a_whole(broker: Broker) -> None:
    bus = await broker.user("publish a/*", deny=("publish a/no",))
    async with broker.root.subscribe("**") as got:
        await forbidden(bus.publish("a/*", b"", confirm=True), '"a/*"')
        await forbidden(bus.publish("**", b"", confirm=True), '"**"')
        await bus.publish("a/yes", b"1")
        assert (await within(got.recv())).topic == "a/yes"


async def test_an_expression_gets_no_topic_that_is_not_allowed(broker: Broker) -> None:
    await broker.root.pin("a/pin", b"allowed")
    await broker.root.pin("a/no", b"denied")
    await broker.root.pin("b/pin", b"elsewhere")
    bus = await broker.user("subscribe,read a/**", deny=("subscribe a/no",))
    async with bus.subscribe("re:.*", notify=True) as got:
        for topic in ("a/no", "b/x", "a/*", "**", "a/last"):
            await broker.root.publish(topic, b"")
        received = [await within(got.recv()) for _ in range(3)]
        assert [message.topic for message in received if message.kind != "notify"] == ["a/pin", "a/last"]
    await forbidden(bus.subscribe("re:.*", since="all").__aenter__(), "read")


async def test_a_push_is_not_offered_to_a_filtered_subscription(broker: Broker) -> None:
    bus = await broker.user("subscribe a/**")
    async with bus.subscribe("re:.*/x"):
        with pytest.raises(busway.NoConsumers):
            await within(broker.root.push("b/x", b""))


async def test_retained_messages_are_listed_as_far_as_they_are_allowed(broker: Broker) -> None:
    await broker.root.pin("a/pin", b"")
    await broker.root.pin("b/pin", b"")
    bus = await broker.user("subscribe a/**")
    reply = await bus.request("$bus/kept", b"")
    assert [one["topic"] for one in reply.json()["kept"]] == ["a/pin"]
    assert (await bus.request("$bus/kept", b'{"pattern": "b/pin"}')).json()["kept"] == []


async def test_a_stream_is_read_as_a_whole_or_by_a_pattern_that_is_allowed(broker: Broker) -> None:
    await broker.root.create_stream("s", ["a/**", "b/**"])
    for topic in ("a/1", "b/1", "a/2"):
        await broker.root.publish(topic, b"", durable=True)
    bus = await broker.user("read a/**", deny=("read a/2",))
    stream = await bus.stream("s")
    await forbidden(collect(stream, "**"), "read")
    await forbidden(collect(stream, "b/**"), "read")
    await forbidden(collect(stream, "a/**"), "read")  # a deny has a topic in common with it
    assert await collect(stream, "a/1") == ["a/1"]
    await forbidden(stream.topics(), "read")
    assert [one.topic for one in await stream.topics("a/1")] == ["a/1"]


async def collect(stream: Any, pattern: str) -> list[str]:
    return [message.topic async for messages in stream.read(topic=pattern) for message in messages]


async def test_streams_and_channels_that_a_user_may_not_use_are_not_listed(broker: Broker) -> None:
    for name in "ab":
        await broker.root.create_stream(name, [f"{name}/**"])
        await broker.root.create_channel(name, "c")
    bus = await broker.user("read a/**")
    assert "b" not in {stream.name for stream in await bus.streams()}
    assert [channel.name for channel in await bus.channels("a")] == ["c"]
    await forbidden(bus.stream("b"), "b/**")
    await forbidden(bus.channels("b"), "b/**")


async def test_a_channel_is_consumed_only_if_all_its_messages_are_allowed(broker: Broker) -> None:
    await broker.root.create_stream("s", ["a/**", "b/**"])
    await broker.root.create_channel("s", "all")
    await broker.root.create_channel("s", "ours", topic="a/**")
    bus = await broker.user("consume a/**")
    async with bus.channel("s", "ours", create=False):
        pass
    async with bus.channel("s", "mine", topic="a/x"):
        pass
    await forbidden(bus.channel("s", "all").__aenter__(), "consume")
    await forbidden(bus.channel("s", "all", topic="a/**").__aenter__(), "consume")  # others would get less
    await forbidden(bus.channel("s", "new", topic="**").__aenter__(), "consume")
    await forbidden(bus.channel("s", "new", topic="a/x", dead_letter="b/dead").__aenter__(), "store")
    await forbidden(bus.seek_channel("s", "ours", "new"), "manage")
    await forbidden(bus.remove_channel("s", "ours"), "manage")


async def test_a_stream_is_managed_only_with_all_its_topics(broker: Broker) -> None:
    await broker.root.create_stream("s", ["a/**", "b/**"])
    bus = await broker.user("manage a/**")
    await forbidden(bus.create_stream("t", ["a/x", "c/**"]), "c/**")
    await forbidden(bus.update_stream("s", max_age="1h"), "b/**")
    await forbidden(bus.remove_stream("s"), "b/**")
    await forbidden(bus.remove_stream("default"), "**")


async def test_only_the_provider_that_got_a_call_can_answer_it(broker: Broker) -> None:
    served = await broker.user("serve a/**", name="server")
    other = await broker.user("publish b", name="other")
    calls: list[Any] = []

    async def handler(message: busway.Message) -> bytes:
        for number in range(64):  # calls have numbers, which can be guessed
            other._core.session.reply(number, b"forged")
        await other.flush()
        calls.append(message)
        return b"true"

    async with served.serve("a/service", handler):
        assert (await within(broker.root.request("a/service", b""))).payload == b"true"
    assert len(calls) == 1


async def test_a_service_of_the_broker_without_a_rule_is_for_administrators(broker: Broker) -> None:
    from busway.broker.admin import permissions, services

    ruled = set(permissions._CHECKS)
    topics = {*services._SERVICES, *services._LATER, *services._OWN}
    assert topics - ruled == {"$bus/cluster/promote", "$bus/stream/aside", "$bus/stream/recover"}


async def test_clients_of_the_same_process_may_do_everything_unless_they_log_in(broker: Broker) -> None:
    broker.users.user("alice", ["publish a"])
    assert broker.server.reload_users()
    await broker.root.publish("b", b"", confirm=True)
    async with broker.server.connect(user="alice", password="alice") as bus:
        await forbidden(bus.publish("b", b"", confirm=True), "publish")


async def test_more_topics_than_slots(broker: Broker) -> None:
    """A slot is filled with another topic: what was allowed for the old one does not count for the new one."""
    bus = await broker.user("publish a/**")
    settings = busway.Settings(topics=4)
    async with busway.serve("tcp://127.0.0.1:0", users=broker.users.path, settings=settings) as server:
        async with busway.connect(server.addresses[0], user="alice", password="alice") as few:
            for number in range(20):
                await few.publish(f"a/{number}", b"", confirm=True)
                await forbidden(few.publish(f"b/{number}", b"", confirm=True), f"b/{number}")
    assert bus.state == "connected"


async def test_a_message_that_is_refused_is_an_event_if_nobody_waits_for_it(broker: Broker) -> None:
    bus = await broker.user("publish a")
    events = bus.events()
    await bus.publish("b", b"")
    async for event in events:
        if event.kind == "rejected":
            assert isinstance(event.error, busway.Forbidden)
            break


async def test_many_grants_are_compiled_once_for_all_connections(broker: Broker) -> None:
    broker.users.role("many", [f"publish t{number}/**" for number in range(1000)])
    broker.users.user("alice", roles=["many"])
    broker.users.user("bob", roles=["many"])
    assert broker.server.reload_users()
    policy = broker.server.authority.policy
    assert policy is not None
    assert policy.grants("alice") is policy.grants("alice")
    assert len(policy._sets) == 0 or policy.grants("bob").may(0, "t999/x")
    assert len(policy._sets) == 1


def test_the_map_of_hello_has_no_secret() -> None:
    from busway.authority.credentials import Credentials

    login = Credentials(user="alice", password="secret").login(7)
    assert b"secret" not in msgspec.msgpack.encode(login.hello)
    assert "secret" not in repr(Credentials(user="alice", password="secret"))
