"""Doors of several nodes of a cluster: services of one are called through the other; answers are routed on their own node."""

import aiohttp
import pytest

import busway
from tests.support import door as doors
from tests.support.json_workers import Worker, plus
from tests.support.net import eventually


@pytest.fixture
async def both(cluster):
    """The doors of two nodes."""
    enter = cluster.stack.enter_async_context
    session = await enter(aiohttp.ClientSession())
    http = busway.Http(address="127.0.0.1:0")
    first = await cluster.start(http=http)
    second = await cluster.start(first, http=http)
    await cluster.whole()
    return [doors.Door(server, await cluster.client(server), session) for server in (first, second)]


async def test_calls_across_nodes(both, form):
    near, far = both
    async with (
        near.ws(form) as worker,
        Worker(worker, plus, bind=["/example/plus"]),
        far.ws(form) as ws,
        far.bus.serve("far/one", lambda message: f"far {message.json()[0]}"),
    ):

        async def known():
            return (await far.http.call("/example/plus/1/2"))[0] == 200

        await eventually(known)
        assert (await far.http.call("/example/plus/1/2"))[1] == 3
        call = {"module": "example", "method": "plus", "params": [4, 5]}
        call = call if form == "flat" else {"url": "/example/plus", "body": [4, 5]}
        assert (await ws.done(**call))["body"] == 9
        assert (await far.bus.request("example/plus", [2, 2])).json() == 4
        request = {"module": "example", "method": "plus", "params": [3, 3]}
        assert (await far.bus.request("MyRpc", request)).json() == 6
        assert (await far.http.call("/example/plus/x"))[0] == 500

        async def also():
            return (await near.http.call("/far/one/1"))[0] == 200

        await eventually(also)
        assert (await near.http.call("/far/one/2"))[1] == "far 2"


async def test_an_answer_is_routed_on_its_node(both, form):
    near, far = both
    async with near.ws(form) as here, far.ws(form) as there:
        await here.done(cmd="create", mq="Q", channel="C")
        await here.done(cmd="sub", mq="Q", channel="C")
        await here.done(cmd="pub", mq="Q", id="m", body="x")
        sender = (await here.recv())["sender"]
        answer = await there.ask(cmd="route", recver=sender, id="m", body="y", ack=True)
        assert (answer["status"], answer["body"]) == (404, f"Target={sender} Not Found")
        await there.send({"cmd": "route", "recver": sender, "id": "m", "body": "y"})
        await there.silent()
        await here.silent()
        await here.done(cmd="route", recver=sender, id="r", body="z")
