"""The messages that released zbus clients send, byte for byte, and what they expect in return.

zbus-js 1.0.5, zbus-python 1.0.7 and zbuspy 1.2.0 speak the form with `headers`; each has its own way to write JSON.
"""

import json

import pytest


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
