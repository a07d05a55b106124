"""A cancelled request is called off at other nodes at once, before its connection number can be reused."""

import asyncio
from types import SimpleNamespace

from busway.broker.peers import ALONE
from busway.broker.services.driver import ServicesDriver
from busway.settings import Settings

LINK, REQUESTER = 4, 2


class Engine:
    def __init__(self):
        self.done = []

    def call(self, *action):
        self.done.append(("call", action[0]))
        return True

    def call_off(self, *action):
        self.done.append(("off", *action))


async def test_a_requester_that_goes_calls_off_what_another_node_was_asked() -> None:
    engine = Engine()
    loop = asyncio.get_running_loop()
    runtime = SimpleNamespace(settings=Settings(), engine=engine, loop=loop, arm=lambda: None, sessions={})
    sharing = ServicesDriver(runtime, ALONE.services)
    sharing.asking.providers.join_remote(LINK, 7, "sum", "another node", asks=False)
    sharing.do(sharing.asking.request(REQUESTER, 15, "sum", b"", loop.time()))
    assert engine.done == [("call", LINK)]
    sharing.forget(REQUESTER)
    assert engine.done == [("call", LINK), ("off", LINK, 1)], "not when the next request comes"
