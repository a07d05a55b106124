"""Clients of the JSON door for its tests: over a WebSocket or HTTP, in either form."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

import busway

FORMS = ("flat", "headers")
RENAMED = {"sender": "source", "recver": "target"}
TOP = ("body", "url", "status")


def formed(form: str, message: dict[str, Any]) -> dict[str, Any]:
    """A flat message in one of the forms."""
    if form == "flat":
        return message
    head = {RENAMED.get(key, key): value for key, value in message.items() if key not in TOP}
    if "topic" in head and head.get("cmd") == "pub":
        head["tag"] = head.pop("topic")
    elif "topic" in head and head.get("cmd") in {"sub", "create"}:
        head["filter"] = head.pop("topic")
    return {"headers": head, **{key: message[key] for key in TOP if key in message}}


def flat(message: dict[str, Any]) -> dict[str, Any]:
    """What was received, in the words of the flat form; what must be text in headers stays that."""
    if "headers" not in message:
        return message
    back = {new: old for old, new in RENAMED.items()}
    head = {back.get(key, key): value for key, value in message["headers"].items()}
    if "tag" in head:
        head["topic"] = head.pop("tag")
    return head | {key: value for key, value in message.items() if key != "headers"}


class Ws:
    """A client over a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, form: str, *, binary: bool = False) -> None:
        self.socket = socket
        self.form = form
        self._binary = binary

    async def send(self, message: dict[str, Any]) -> None:
        text = json.dumps(formed(self.form, message))
        await (self.socket.send_bytes(text.encode()) if self._binary else self.socket.send_str(text))

    async def raw(self, timeout: float = 10.0) -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            found = await self.socket.receive()
        assert found.type is aiohttp.WSMsgType.TEXT, found
        return json.loads(found.data)

    async def recv(self, timeout: float = 10.0) -> dict[str, Any]:
        """The next message, in the words of the flat form."""
        found = await self.raw(timeout)
        assert ("headers" in found) == (self.form == "headers"), found
        return flat(found)

    async def ask(self, **message: Any) -> dict[str, Any]:
        await self.send(message)
        return await self.recv()

    async def done(self, **message: Any) -> dict[str, Any]:
        answer = await self.ask(**message)
        assert answer["status"] == 200, answer
        return answer

    async def silent(self) -> None:
        """Nothing has come, and nothing was about to."""
        answer = await self.ask(cmd="ping", id="silent?")
        assert answer["id"] == "silent?", answer


class Http:
    """A client that asks one thing at a time."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
        async with self.session.get(self.url + path, **more) as response:
            return response.status, json.loads(await response.read())

    async def call(self, path: str, method: str = "GET", **more: Any) -> tuple[int, Any, str]:
        """Status, value and content type of the answer to a call by URL."""
        async with self.session.request(method, self.url + path, **more) as response:
            data = await response.read()
            value = json.loads(data) if response.content_type == "application/json" else data.decode()
            assert len(response.headers.getall("Content-Type")) == 1
            return response.status, value, response.content_type

    async def post(self, message: Any, form: str = "flat") -> tuple[int, dict[str, Any]]:
        async with self.session.post(self.url + "/", json=formed(form, message)) as response:
            return response.status, json.loads(await response.read())


class Door:
    """A server with its JSON door, and clients of both kinds."""

    def __init__(self, server: busway.Server, bus: busway.Bus, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.bus = bus
        self.session = session
        assert server.http is not None
        self.url = server.http
        self.http = Http(session, self.url)

    @asynccontextmanager
    async def ws(self, form: str = "flat", **more: Any):
        async with self.session.ws_connect(self.url + "/", max_msg_size=0) as socket:
            yield Ws(socket, form, **more)


@asynccontextmanager
async def opened(data: Any = None, settings: busway.Settings | None = None, **http: Any):
    """A server with a JSON door at any port."""
    chosen = busway.Http(address="127.0.0.1:0", **http)
    async with (
        busway.serve(http=chosen, data=data, settings=settings, name="door") as server,
        server.connect(name="native") as bus,
        aiohttp.ClientSession() as session,
    ):
        yield Door(server, bus, session)
