"""A service behind the JSON door, as a client of a WebSocket."""

import asyncio


async def work(ws, answer):
    """Serve as the clients of the protocol do: messages of a queue, answered with `route`."""
    while True:
        got = await ws.recv()
        if "status" in got and "sender" not in got:
            continue
        status, body = answer(got)
        await ws.send({"cmd": "route", "recver": got["sender"], "id": got["id"], "status": status, "body": body})


class Worker:
    """A client that serves a queue while it is entered."""

    def __init__(self, ws, answer, mq="MyRpc", bind=None):
        self.ws, self.answer, self.mq, self.bind = ws, answer, mq, bind

    async def __aenter__(self):
        await self.ws.done(cmd="create", mq=self.mq, channel=self.mq)
        await self.ws.done(cmd="sub", mq=self.mq, channel=self.mq)
        if self.bind:
            await self.ws.done(cmd="bind", mq=self.mq, body=[{"url": url, "mq": self.mq} for url in self.bind])
        self.task = asyncio.create_task(work(self.ws, self.answer))

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])


def arguments(message):
    return message["params"] if "params" in message else message["body"]


def plus(message):
    try:
        return 200, sum(map(int, arguments(message)))
    except Exception as error:
        return 500, {"error": str(error)}
