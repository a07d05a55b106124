"""The messages of released zbus clients, byte for byte, and the answers that they expect.

zbus-js 1.0.5, zbus-python 1.0.7 and zbuspy 1.2.0 speak the form with `headers`; each has its own way to write JSON.
"""

import hmac
import json

import pytest

from tests.support import door as doors

KEY, SECRET = "2ba912a8-4a8d-49d2-1a22-198fd285cb06", "461277322-943d-4b2f-b9b6-3f860d746ffd"


def javascript(message):
    """As JSON.stringify writes it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False)


def python(message):
    """As json.dumps writes it."""
    return json.dumps(message)


@pytest.mark.parametrize(("write", "ack"), [(javascript, False), (python, "false")], ids=["js", "python"])
async def test_the_filter_of_a_subscription_outlives_the_renewal_of_its_credit(door, write, ack):
    """All of them renew with `window` and without `filter`."""
    async with door.ws("headers") as ws, door.ws("headers") as publisher:
        await ws.done(cmd="create", mq="MyMQ", channel="MyChannel")
        sub = {"cmd": "sub", "mq": "MyMQ", "channel": "MyChannel"}
        await ws.socket.send_str(write({"headers": {**sub, "window": 1, "filter": "abc", "id": "s"}}))
        assert (await ws.recv())["status"] == 200
        for number in range(30):
            tag = "abc" if number % 10 == 9 else "other"
            head = {"cmd": "pub", "mq": "MyMQ", "tag": tag}
            await publisher.socket.send_str(write({"headers": head, "body": number}))
            assert (await publisher.recv())["status"] == 200
        got = []
        for _ in range(3):
            message = await ws.recv()
            got.append(message["body"])
            assert message["window"] == "0"
            await ws.socket.send_str(write({"headers": {**sub, "window": 1, "ack": ack}}))
        assert got == [9, 19, 29]
        await ws.silent()
        await ws.socket.send_str(write({"headers": {**sub, "window": 1, "filter": ""}}))
        assert (await ws.recv())["status"] == 200
        assert (await ws.recv())["body"] == 0


@pytest.mark.parametrize("write", [javascript, python], ids=["js", "python"])
async def test_a_ping_without_an_id_is_not_answered(door, write):
    """All of them send it every 30 seconds, and those in Python log a warning for an answer."""
    async with door.ws("headers") as ws:
        await ws.socket.send_str(write({"headers": {"cmd": "ping"}}))
        await ws.done(cmd="create", mq="Q", id="next")
        await ws.silent()
        assert (await ws.ask(cmd="ping", id="p"))["body"] == "OK, PING"
    assert (await door.http.get("/?cmd=ping"))[1]["body"] == "OK, PING"


def signed_javascript(message):
    return json.dumps(sort_as_javascript(message), separators=(",", ":"), ensure_ascii=False)


def sort_as_javascript(value):
    if isinstance(value, dict):
        return {name: sort_as_javascript(value[name]) for name in sorted(value)}
    return [sort_as_javascript(one) for one in value] if isinstance(value, list) else value


def signed_python(message):
    return json.dumps(message, separators=(",", ":"), sort_keys=True)


@pytest.mark.parametrize("body", [None, "ż中文", {"a": None, "b": ["ü", 1.5]}], ids=["null", "text", "object"])
@pytest.mark.parametrize(
    ("write", "text"), [(javascript, signed_javascript), (python, signed_python)], ids=["js", "python"]
)
async def test_signed_answers_of_services_arrive(tmp_path, write, text, body):
    """Nulls are signed by both, and Python escapes what is not ASCII."""
    (tmp_path / "keys.toml").write_text(
        f'[[key]]\napiKey = "{KEY}"\nsecretKey = "{SECRET}"\nsubscribe = ["**"]\nserve = ["**"]\nrequest = ["**"]\n'
        'publish = ["**"]\n'
    )
    (tmp_path / "keys.toml").chmod(0o600)

    async with (
        doors.opened(keys=tmp_path / "keys.toml") as door,
        door.ws("headers") as server,
        door.ws("headers") as ws,
    ):

        async def send(one, message):
            message["headers"]["apiKey"] = KEY
            digits = hmac.digest(SECRET.encode(), text(message).encode(), "sha256").hex()
            message["headers"]["signature"] = digits
            await one.socket.send_str(write(message))

        create = {"cmd": "create", "mq": "MyRpc", "channel": "MyRpc", "mqType": None}
        for head in (create, {"cmd": "sub", "mq": "MyRpc", "channel": "MyRpc"}):
            await send(server, {"headers": head})
            assert (await server.recv())["status"] == 200
        await send(server, {"headers": {"cmd": "bind", "mq": "MyRpc"}, "body": [{"url": "/f", "mq": "MyRpc"}]})
        assert (await server.recv())["status"] == 200
        await send(ws, {"headers": {"id": "c"}, "url": "/f", "body": [body]})
        call = await server.recv()
        assert call["body"] == [body]
        await send(
            server,
            {"headers": {"cmd": "route", "target": call["sender"], "id": call["id"]}, "status": 200, "body": body},
        )
        answer = await ws.recv()
        assert (answer["id"], answer["status"], answer["body"]) == ("c", 200, body)
