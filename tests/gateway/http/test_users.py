"""Users at the HTTP port: the same authority as for native clients, over every way in."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import busway
from busway.authority import keys, tokens
from tests.support.users import UsersFile

PAGES = ("/metrics", "/services", "/asyncapi.json")


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    return UsersFile(tmp_path / "users.toml").user(
        "alice", ["store,consume,manage,request,serve,publish,subscribe,read a/**"], ["store,publish a/no"]
    )


@pytest.fixture
async def server(users: UsersFile) -> AsyncIterator[busway.Server]:
    async with busway.serve(http="127.0.0.1:0", users=users.path) as server, server.connect() as root:
        for topic in ("a/x", "a/no", "b/x"):
            await root.create_stream(topic.replace("/", "-"), [topic])
        async with root.serve("a/service", lambda message: b"1"), root.serve("b/service", lambda message: b"1"):
            yield server


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


class Client:
    """Sends requests as a user."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self.session, self.url, self.headers = session, url, headers

    async def command(self, **request: Any) -> tuple[int, Any]:
        async with self.session.post(self.url, json=request, headers=self.headers) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str, **more: Any) -> int:
        async with self.session.get(self.url + path, headers=self.headers, **more) as response:
            return response.status


@pytest.fixture
async def client(server: busway.Server) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as session:
        assert server.http is not None
        url = server.http
        yield lambda user=None, password=None: Client(
            session, url, {} if user is None else basic(user, user if password is None else password)
        )


async def test_commands_need_a_user_and_its_grants(client: Any) -> None:
    alice = client("alice")
    for command, status in (
        ({"cmd": "create", "mq": "a/new"}, 200),
        ({"cmd": "create", "mq": "b/new"}, 403),
        ({"cmd": "pub", "mq": "a/x", "body": "1"}, 200),
        ({"cmd": "pub", "mq": "a/no", "body": "1"}, 403),
        ({"cmd": "pub", "mq": "b/x", "body": "1"}, 403),
        ({"cmd": "take", "mq": "b/x", "channel": "c"}, 403),
        ({"cmd": "query", "mq": "b/x"}, 403),
        ({"cmd": "remove", "mq": "b/x"}, 403),
        ({"mq": "b", "method": "service"}, 403),
    ):
        assert (await alice.command(**command))[0] == status, command
    for stranger in (client(), client("alice", "wrong"), client("bob", "alice"), client("", "")):
        assert (await stranger.command(cmd="pub", mq="a/x", body="1"))[0] == 401
        assert (await stranger.command(cmd="create", mq="a/y"))[0] == 401


async def test_wrong_credentials_look_alike(client: Any) -> None:
    texts = {
        json.dumps((await who.command(cmd="ping"))[1]["body"]) for who in (client("alice", "x"), client("bob", "x"))
    }
    assert texts == {'"the credentials were refused"'}


async def test_pages_about_the_broker_need_observe(client: Any, users: UsersFile, server: busway.Server) -> None:
    users.user("operator", ["observe $bus/**"])
    assert server.reload_users()
    for path in PAGES:
        assert await client().get(path) == 401, path
        assert await client("alice").get(path) == 403, path
        assert await client("operator").get(path) == 200, path
    for path in ("/healthz", "/readyz"):
        assert await client().get(path) == 200


async def test_cloudevents(client: Any) -> None:
    headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
    alice, stranger = client("alice"), client()

    async def post(who: Any, topic: str, query: str = "") -> int:
        async with who.session.post(
            f"{who.url}/events/{topic}{query}", data=b"1", headers=headers | who.headers
        ) as response:
            return int(response.status)

    assert await post(alice, "a/x") == 200
    assert await post(alice, "a/x", "?durable=1") == 200
    assert await post(alice, "a/no") == 403
    assert await post(alice, "b/x") == 403
    assert await post(stranger, "a/x") == 401
    assert await alice.get("/events/a/**?max=1&wait=0") == 200
    assert await alice.get("/events/a/x?since=all&max=1&wait=0") == 200
    assert await alice.get("/events/**?max=1&wait=0") == 403
    assert await stranger.get("/events/a/x?max=1&wait=0") == 401


async def test_a_websocket_belongs_to_a_user_and_ends_with_it(
    client: Any, users: UsersFile, server: busway.Server
) -> None:
    alice = client("alice")
    async with alice.session.ws_connect(alice.url, headers=alice.headers) as socket:
        await socket.send_json({"cmd": "pub", "mq": "a/x", "body": "1", "id": "1"})
        assert (await socket.receive_json())["status"] == 200
        await socket.send_json({"cmd": "pub", "mq": "b/x", "body": "1", "id": "2"})
        assert (await socket.receive_json())["status"] == 403
        users.user("alice", ["store a/other"])
        async with asyncio.timeout(60):
            while not socket.closed:
                await socket.receive()
        assert socket.close_code == 1008
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await alice.session.ws_connect(alice.url, headers=basic("alice", "wrong"))
    assert caught.value.status == 401
    async with alice.session.ws_connect(alice.url) as socket:
        await socket.send_json({"cmd": "pub", "mq": "a/x", "body": "1", "id": "1"})
        assert (await socket.receive_json())["status"] == 401


async def test_a_body_is_not_read_before_the_login(client: Any) -> None:
    stranger = client("alice", "wrong")
    reader, writer = await asyncio.open_connection(*stranger.url.removeprefix("http://").split(":"))
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\nAuthorization: Basic eA==\r\n\r\n")
    async with asyncio.timeout(60):
        assert b" 401 " in await reader.readline()
    writer.close()


async def test_bearer_tokens(client: Any, users: UsersFile, server: busway.Server, tmp_path: Path) -> None:
    import time

    private = tmp_path / "issuer.key"
    private.write_bytes(keys.to_pem(keys.new_private()))
    (tmp_path / "jwks.json").write_text(tokens.jwks_of(private))
    users.role("writer", ["store a/x"]).table("tokens", 'jwks = "jwks.json"\naudience = "busway"')
    assert server.reload_users()
    token = tokens.issue(private, {"sub": "guest", "aud": "busway", "exp": time.time() + 60, "roles": ["writer"]})
    who = client()

    async def pub(mq: str, text: str) -> int:
        headers = {"Authorization": f"Bearer {text}"}
        async with who.session.post(who.url, json={"cmd": "pub", "mq": mq, "body": "1"}, headers=headers) as response:
            return int(response.status)

    assert await pub("a/x", token) == 200
    assert await pub("b/x", token) == 403
    assert await pub("a/x", token + "x") == 401


async def test_the_password_is_checked_again_when_it_has_changed(
    client: Any, users: UsersFile, server: busway.Server
) -> None:
    assert (await client("alice").command(cmd="pub", mq="a/x", body="1"))[0] == 200
    users.user("alice", ["store a/**"], password="new")
    assert server.reload_users()
    assert (await client("alice").command(cmd="pub", mq="a/x", body="1"))[0] == 401
    assert (await client("alice", "new").command(cmd="pub", mq="a/x", body="1"))[0] == 200
