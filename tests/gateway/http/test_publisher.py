"""Messages of clients on their way to the bus: in order also when the bus has no room, each answered once."""

import pytest

from tests.support import door as doors


@pytest.fixture
def little_room(monkeypatch):
    """The bus takes about three messages at a time."""
    monkeypatch.setattr("busway.client.durable.publisher._MAX_BYTES", 1000)


@pytest.mark.usefixtures("little_room")
async def test_messages_that_wait_for_room_keep_their_order(door, form):
    async with door.ws(form, binary=True) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        for number in range(100):
            await ws.send({"cmd": "pub", "mq": "Q", "id": f"m{number}", "body": f"b{number}"})
        answers = [await ws.recv() for _ in range(100)]
        assert [(one["id"], one["status"]) for one in answers] == [(f"m{number}", 200) for number in range(100)]
        bodies = []
        while len(bodies) < 100:
            taken = await ws.done(cmd="take", mq="Q", channel="C", window="100", timeout="60")
            bodies += [doors.flat(one)["body"] for one in taken["body"]]
        assert bodies == [f"b{number}" for number in range(100)]


@pytest.mark.usefixtures("little_room")
async def test_messages_that_wait_for_room_at_the_end_are_answered(tmp_path):
    async with doors.opened(tmp_path / "data") as door, door.ws() as ws:
        await ws.done(cmd="create", mq="Q")
        for number in range(100):
            await ws.send({"cmd": "pub", "mq": "Q", "id": f"m{number}", "body": f"b{number}"})
        await ws.send({"cmd": "remove", "mq": "Q", "id": "removed"})
        answers = {}
        while len(answers) < 101:
            one = await ws.recv()
            assert one["id"] not in answers
            answers[one["id"]] = one["status"]
        assert answers.pop("removed") == 200
        assert {*answers.values()} <= {200, 404}


async def test_a_refused_message_is_answered_with_its_reason(door, form):
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q")
        deep = []
        for _ in range(100):
            deep = [deep]
        refused = await ws.ask(cmd="pub", mq="Q", id="1", body="x", deep=deep)
        assert (refused["id"], refused["status"]) == ("1", 400), refused
        assert (await ws.done(cmd="pub", mq="Q", id="2", body="x"))["id"] == "2"
