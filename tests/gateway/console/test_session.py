"""Sessions of the console over their WebSocket, without a browser: requests, tails, stored messages, dead letters, keys."""

import asyncio
import base64
import json
import time
from contextlib import asynccontextmanager, suppress
from itertools import count

import aiohttp
import pytest

import busway
from busway.gateway.auth.signatures import signed
from busway.gateway.console.tail import ROWS
from tests.support.users import UsersFile

PATIENCE = 10.0


class Session:
    """A tab, as its broker sees it."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = count(1)
        self.pushed = asyncio.Queue()
        self._answers = {}

    async def read(self):
        async for frame in self._socket:
            said = json.loads(frame.data)
            if "id" in said:
                self._answers.setdefault(said["id"], asyncio.get_running_loop().create_future()).set_result(said)
            else:
                self.pushed.put_nowait(said)

    async def raw(self, request):
        answer = self._answers[request["id"]] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps(request))
        return await asyncio.wait_for(answer, PATIENCE)

    async def refused(self, cmd, **args):
        said = await self.raw({"id": next(self._numbers), "cmd": cmd, "args": args})
        assert said["status"] != 200, said
        return said["status"], said["body"]

    async def run(self, cmd, args=None, **more):
        said = await self.raw({"id": next(self._numbers), "cmd": cmd, "args": args if args is not None else more})
        assert said["status"] == 200, said
        return said["body"]

    async def push(self):
        return await asyncio.wait_for(self.pushed.get(), PATIENCE)


@asynccontextmanager
async def session(server):
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{server.http}/console/socket", max_msg_size=0) as socket,
    ):
        made = Session(socket)
        reading = asyncio.create_task(made.read())
        try:
            yield made
        finally:
            reading.cancel()


@pytest.fixture
async def server():
    async with busway.serve(name="here", http="127.0.0.1:0") as made:
        yield made


@pytest.fixture
async def bus(server):
    async with server.connect(name="feed") as made:
        yield made


@pytest.fixture
async def tab(server):
    async with session(server) as made:
        made.hello = (await made.push())["hello"]
        yield made


async def test_it_says_hello(server, tab):
    assert tab.hello["guid"] == server.guid
    assert (tab.hello["name"], tab.hello["login"]) == ("here", "none")


async def test_it_asks_services_of_the_broker(tab):
    assert (await tab.run("ask", topic="$bus/info", body={"connections": 0}))["name"] == "here"
    assert await tab.refused("ask", topic="$bus/stream/list", body={"name": "nobody"}) == (
        404,
        "there is no stream 'nobody'",
    )


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("[]", 400, "a request is a JSON object"),
        ('{"id": 1, "cmd": "no"}', 404, "the console has no command 'no'"),
        ('{"id": 1, "cmd": ["ask"]}', 404, "the console has no command"),
        ('{"id": 1, "cmd": "page", "args": {}}', 400, "Object missing required field `stream`"),
        ('{"id": 1, "cmd": "page", "args": {"stream": "default", "count": 100000}}', 400, "<= 500"),
        ('{"id": 1, "cmd": "tail", "args": {"pattern": "a//b"}}', 500, "segment"),
        ('{"id": 1, "cmd": "tail", "args": {"where": ["a=expr:("]}}', 400, "rule"),
        ("{", 400, "truncated"),
        ("[" * 5000, 400, ""),
    ],
)
async def test_bad_requests_are_refused(server, text, status, told):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{server.http}/console/socket") as socket:
        await socket.receive_json(timeout=PATIENCE)
        await socket.send_str(text)
        said = await socket.receive_json(timeout=PATIENCE)
        assert told.lower() in said["body"].lower()
        assert said["status"] >= 400
        await socket.send_str('{"id": "later", "cmd": "ask", "args": {"topic": "$bus/info"}}')
        assert (await socket.receive_json(timeout=PATIENCE))["id"] == "later"
    assert server.stats()["errors"] == 0


async def test_a_tail_has_retained_and_live_messages(bus, tab):
    await bus.pin("a/kept", b"1")
    number = (await tab.run("tail", pattern="a/**", where=["size=expr:value > 2"], text=""))["tail"]
    await bus.publish("a/b", "żółć", fields={"size": 1})
    await bus.publish("a/b", "żółć", fields={"size": 3})
    said = await tab.push()
    assert said["tail"] == number
    (row,) = said["rows"]
    assert (row["topic"], row["text"], row["fields"], row["sender"]) == ("a/b", "żółć", {"size": 3}, "feed")
    await tab.run("untail", number)
    await tab.run("tail", pattern="a/kept")
    said = await tab.push()
    assert (said["rows"][0]["kept"], said["rows"][0]["text"]) == (True, "1")


async def test_a_busy_tail_is_a_sample_and_counts_the_rest(server, bus, tab):
    number = (await tab.run("tail", pattern="busy"))["tail"]
    sent, rows, missed, pushes, began = 0, 0, 0, 0, time.monotonic()
    while missed == 0 or pushes < 3:
        for _ in range(5000):
            await bus.publish("busy", b"x")
        sent += 5000
        while not tab.pushed.empty():
            said = tab.pushed.get_nowait()
            rows, missed, pushes = rows + len(said["rows"]), said["missed"], pushes + 1
            assert len(said["rows"]) <= ROWS
        await asyncio.sleep(0)
        assert time.monotonic() - began < 30
    await bus.flush()
    while rows + missed < sent:
        said = await tab.push()
        rows, missed = rows + len(said["rows"]), said["missed"]
    assert (rows + missed, rows < 4 * ROWS * (time.monotonic() - began) + 200) == (sent, True)
    await tab.run("untail", number)
    async with asyncio.timeout(PATIENCE):
        while server.stats()["subscriptions"]:
            await asyncio.sleep(0.01)


async def test_a_session_has_few_tails(tab):
    for _ in range(8):
        await tab.run("tail", pattern="**")
    assert await tab.refused("tail", pattern="**") == (400, "a console may have 8 tails: stop one first")


@pytest.fixture
async def stored(bus):
    await bus.create_stream("orders", topics=["orders/**"])
    for number in range(300):
        text = json.dumps({"id": number, "text": "needle [*]" if number % 100 == 7 else "hay"})
        await bus.publish(f"orders/{'eu' if number % 2 else 'us'}", text, fields={"number": number}, durable=True)


def offsets(page):
    return [row["offset"] for row in page["rows"]]


async def test_the_newest_messages_come_first_and_older_ones_follow(stored, tab):
    page = await tab.run("page", stream="orders", count=100)
    assert (offsets(page), page["begin"], page["end"]) == ([*range(200, 300)], 200, 300)
    page = await tab.run("page", stream="orders", count=150, offset=page["begin"])
    assert offsets(page) == [*range(50, 200)]
    page = await tab.run("page", stream="orders", count=150, offset=page["begin"])
    assert (offsets(page), page["begin"], page["first"]) == ([*range(50)], 0, 0)


async def test_messages_from_an_offset_and_from_a_time(bus, stored, tab):
    page = await tab.run("page", stream="orders", count=3, offset=10, back=False)
    assert (offsets(page), page["end"]) == ([10, 11, 12], 13)
    page = await tab.run("page", stream="orders", count=3, offset=99_999, back=False)
    assert (offsets(page), page["begin"]) == ([], 300)
    moment = (await tab.run("page", stream="orders", count=1, offset=150, back=False))["rows"][0]["stored"]
    page = await tab.run("page", stream="orders", count=1, time=moment, back=False)
    assert abs(offsets(page)[0] - 150) <= 20  # milliseconds hold several messages


async def test_messages_by_topic_field_and_text(stored, tab):
    page = await tab.run("page", stream="orders", pattern="orders/eu", count=3)
    assert offsets(page) == [295, 297, 299]
    page = await tab.run("page", stream="orders", where=["number=expr:value < 3"])
    assert (offsets(page), page["begin"]) == ([0, 1, 2], 0)
    page = await tab.run("page", stream="orders", text="needle [*]")
    assert offsets(page) == [7, 107, 207]
    page = await tab.run("page", stream="orders", text="needle [*]", back=False, offset=8, count=1)
    assert (offsets(page), page["end"]) == ([107], 108)
    assert (await tab.refused("page", stream="orders", where=["expr:true"], text="x"))[0] == 400


async def test_a_large_payload_is_cut_in_lists_and_whole_alone(bus, stored, tab):
    data = bytes(range(256)) * 16 * 1024  # 4 MiB, no text
    stored_at = await bus.publish("orders/big", data, durable=True)
    (row,) = (await tab.run("page", stream="orders", count=1))["rows"]
    assert (row["size"], row["cut"], len(base64.b64decode(row["base64"]))) == (len(data), True, 4096)
    whole = await tab.run("message", stream="orders", offset=stored_at.offset)
    assert (whole["cut"], base64.b64decode(whole["base64"]) == data) == (False, True)
    _, text = await tab.refused("message", stream="orders", offset=99_999)
    assert "no message at offset 99999" in text


async def test_text_is_cut_between_characters(bus, tab):
    await bus.create_stream("s", topics=["s"])
    await bus.publish("s", "ż" * 4000 + "x", durable=True)
    await bus.publish("s", "x" + "ż" * 4000, durable=True)
    rows = (await tab.run("page", stream="s"))["rows"]
    assert [row["text"] for row in rows] == ["ż" * 2048, "x" + "ż" * 2047]


async def test_a_range_is_published_again(bus, stored, tab):
    async with bus.subscribe("again") as again:
        done = await tab.run("replay", stream="orders", begin=10, end=20, pattern="orders/eu", topic="again")
        assert done == {"replayed": 5, "limit": 100_000, "complete": True}
        messages = [await again.recv(5) for _ in range(5)]
    assert [message.fields["number"] for message in messages] == [11, 13, 15, 17, 19]


async def test_publishing_of_each_kind(bus, tab):
    await bus.create_stream("orders", topics=["orders/**"])
    assert await tab.run("publish", topic="a", text="x") == {"receivers": 0}
    async with bus.subscribe("a") as messages:
        assert await tab.run("publish", topic="a", text="x", fields=["n=1", "s=text"]) == {"receivers": 1}
        message = await messages.recv(5)
        assert (message.payload, message.fields) == (b"x", {"n": 1, "s": "text"})
        await tab.run("publish", topic="a", base64=base64.b64encode(b"\xff\x00").decode())
        assert (await messages.recv(5)).payload == b"\xff\x00"
        await tab.run("publish", topic="a", text="pushed", kind="push")
        assert (await messages.recv(5)).kind == "push"
    stored = await tab.run("publish", topic="orders/1", text="x", kind="durable")
    assert (stored["stream"], stored["offset"]) == ("orders", 0)
    await tab.run("publish", topic="config", text="1", kind="pin")
    assert [message.payload for message in await bus.kept("config")] == [b"1"]
    assert await tab.run("publish", topic="config", kind="unpin") == {"removed": True}
    for wrong in (
        {"topic": "a//b"},
        {"topic": "$bus/x"},
        {"topic": "a", "fields": ["n"]},
        {"topic": "a", "base64": "!"},
    ):
        assert (await tab.refused("publish", **wrong))[0] >= 400


async def test_calls_have_replies_and_errors(bus, tab):
    async with bus.serve("sum", lambda message: sum(message.json())):
        assert (await tab.run("call", topic="sum", text="[1, 2]"))["text"] == "3"
        _, text = await tab.refused("call", topic="sum", text='["a"]')
        assert "TypeError" in text or "unsupported" in text
    assert (await tab.refused("call", topic="nobody"))[0] == 404


async def test_dead_letters_have_reasons_and_go_back(bus, tab):
    await bus.create_stream("orders", topics=["orders/**"])
    done = asyncio.Event()
    failing = True

    def handler(message):
        if failing:
            raise ValueError(f"no price for {message.payload.decode()}")
        done.set()

    for number in range(3):
        await bus.publish("orders/t", str(number), durable=True)
    bus._core.on_error = None
    async with bus.channel("orders", "billing", handler=handler, max_deliveries=1):
        async with asyncio.timeout(PATIENCE):
            while len(letters := (await tab.run("letters", stream="orders", channel="billing"))["letters"]) < 3:
                await asyncio.sleep(0.02)
        assert [letter["text"] for letter in letters] == ["2", "1", "0"]
        assert "no price for 2" in letters[0]["reason"]
        assert letters[0]["error"] == "ValueError"
        failing = False
        made = await tab.run("redrive", stream="orders", channel="billing", ids=[letters[0]["id"]])
        assert made == {"redriven": 1, "before": 0, "gone": 0, "left": 0}
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert (await tab.run("redrive", stream="orders", channel="billing"))["redriven"] == 2
    assert (await tab.run("letters", stream="orders", channel="billing"))["letters"] == []
    assert len((await tab.run("letters", stream="orders", channel="billing", redriven=True))["letters"]) == 3


async def test_a_session_runs_few_requests_at_a_time(bus, tab):
    release = asyncio.Event()

    async def slow(_):
        await release.wait()
        return b"1"

    async with bus.serve("slow", slow, concurrency=100):
        requests = [{"id": number, "cmd": "call", "args": {"topic": "slow"}} for number in range(70)]
        running = [asyncio.create_task(tab.raw(request)) for request in requests]
        refused = [(await asyncio.wait_for(task, PATIENCE)) for task in running[64:]]
        assert [(said["status"], said["body"]) for said in refused] == [
            (400, "a console may have 64 requests at a time")
        ] * 6
        release.set()
        assert [said["status"] for said in await asyncio.gather(*running[:64])] == [200] * 64


async def test_the_broker_stops_with_a_tab_open():
    async with busway.serve(http="127.0.0.1:0") as server:
        async with aiohttp.ClientSession() as http, http.ws_connect(f"{server.http}/console/socket") as socket:
            await socket.receive_json(timeout=PATIENCE)
            stopping = asyncio.create_task(server.stop())
            closed = await socket.receive(timeout=PATIENCE)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1001)
            await asyncio.wait_for(stopping, PATIENCE)


KEYS = """
[[key]]
apiKey = "anna"
secretKey = "s3cret"
name = "Anna"
request = ["$bus/info", "price"]
subscribe = ["price/**"]
publish = ["price/**"]
"""


@pytest.fixture
async def guarded(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    (tmp_path / "keys.toml").chmod(0o600)
    async with busway.serve(http=busway.Http(address="127.0.0.1:0", keys=tmp_path / "keys.toml")) as made:
        yield made


async def test_a_door_with_keys_asks_for_one(guarded):
    async with session(guarded) as tab:
        hello = (await tab.push())["hello"]
        assert (hello["login"], hello["rights"]["everything"]) == ("key", False)
        assert await tab.refused("ask", topic="$bus/info") == (401, "log in first")
        assert (await tab.raw(signed({"id": 90, "cmd": "login"}, "anna", "wrong")))["status"] == 403
        said = await tab.raw(signed({"id": 91, "cmd": "login", "timestamp": 1}, "anna", "s3cret"))
        assert (said["status"], said["body"]["user"]) == (200, "Anna")
        assert "publish price/**" in said["body"]["allow"]
        assert "name" in await tab.run("ask", topic="$bus/info")
        assert await tab.refused("ask", topic="$bus/connections") == (403, "apiKey may not request $bus/connections")
        assert await tab.refused("tail", pattern="**") == (403, "apiKey may not subscribe **")
        await tab.run("tail", pattern="price/*")
        assert (await tab.refused("publish", topic="orders/1"))[0] == 403
        assert (await tab.refused("page", stream="default"))[0] == 403
        assert (await tab.refused("letters", stream="default", channel="x"))[0] == 403
        assert (await tab.refused("redrive", stream="default", channel="x"))[0] == 403
        assert (await tab.refused("message", stream="default", offset=0))[0] == 403
        assert (await tab.refused("replay", stream="default", begin=0, end=1))[0] == 403


@pytest.fixture
def users(tmp_path):
    made = UsersFile(tmp_path / "users.toml")
    made.user("anna", ["observe $bus/**", "subscribe,publish price/**"])
    return made.user("root", ["all **"])


@pytest.fixture
async def shared(users):
    async with busway.serve(http="127.0.0.1:0", users=users.path) as made:
        yield made


async def test_a_user_logs_in_and_may_do_what_its_grants_allow(shared):
    async with shared.connect() as bus:
        await bus.publish("secret", b"1", durable=True)
    async with session(shared) as tab:
        hello = (await tab.push())["hello"]
        assert (hello["login"], hello["rights"]["everything"]) == ("user", False)
        assert await tab.refused("ask", topic="$bus/info") == (401, "log in first")
        for wrong in ({}, {"user": "anna"}, {"user": "", "password": "x"}, {"user": ["anna"], "password": "anna"}):
            assert (await tab.raw({"id": 80, "cmd": "login", **wrong}))["status"] == 400
            tab._answers.pop(80)
        for name, password in (("anna", "wrong"), ("nobody", "nobody"), ("anonymous", "")):
            assert (await tab.raw({"id": 81, "cmd": "login", "user": name, "password": password}))["status"] in {
                400,
                403,
            }
            tab._answers.pop(81)
        said = await tab.raw({"id": 90, "cmd": "login", "user": "anna", "password": "anna"})
        assert (said["status"], said["body"]["user"]) == (200, "anna")
        assert "observe $bus/**" in said["body"]["allow"]
        assert (await tab.raw({"id": 91, "cmd": "login", "user": "root", "password": "root"}))["status"] == 400
        (found,) = (await tab.run("ask", topic="$bus/connections", body={"search": "console"}))["connections"]
        assert found["user"] == "anna"
        for service in ("$bus/rates", "$bus/topics", "$bus/services"):
            await tab.run("ask", topic=service)
        status, text = await tab.refused("ask", topic="$bus/connections/close", body={"client": 1, "name": "x"})
        assert (status, "admin" in text) == (403, True)
        assert (await tab.refused("tail", pattern="**"))[0] == 403
        assert (await tab.refused("page", stream="default"))[0] == 403
        await tab.run("tail", pattern="price/*")
        assert await tab.run("publish", topic="price/eth", text="1") == {"receivers": 1}
        assert (await tab.refused("publish", topic="orders/1"))[0] == 403


async def ask_info(socket):
    with suppress(ConnectionError):  # the broker has closed it, and says why
        await socket.send_json({"id": 2, "cmd": "ask", "args": {"topic": "$bus/info"}})
    return await socket.receive()


async def test_a_user_that_is_removed_has_to_log_in_again(shared, users):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{shared.http}/console/socket") as socket:
        await socket.receive_json(timeout=PATIENCE)
        await socket.send_json({"id": 1, "cmd": "login", "user": "anna", "password": "anna"})
        assert (await socket.receive_json(timeout=PATIENCE))["status"] == 200
        users.remove("anna")
        shared.reload_users()
        async with asyncio.timeout(PATIENCE):
            while (said := await ask_info(socket)).type is not aiohttp.WSMsgType.CLOSE:
                await asyncio.sleep(0.02)
        assert said.data == 4001


async def test_the_page_needs_no_user_and_everything_else_does(shared):
    async with aiohttp.ClientSession(shared.http) as http:
        async with http.get("/", headers={"Accept": "text/html"}) as answer:
            assert answer.status == 200
        async with http.post("/console/add", data=b"[1]") as answer:
            assert answer.status in {401, 403}
