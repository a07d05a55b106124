"""Registrations that a server refuses after a reconnect are retried while the client's own old connection may be the
cause.
"""

import pytest

import busway
from tests.support.connection_events import next_event
from tests.support.net import Net


async def test_a_link_that_comes_between_two_questions_does_not_end_the_hope(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody whom it has left was linked, and yet the service is taken: by whom, is only sure if that is still so."""
    await net.serve()
    bus = await net.connect("came back")
    events = bus.events()
    service = await bus.serve("mine").start()
    reclaim = bus._life._reclaim
    reclaim._left = {"the server it has left": bus._core.loop.time() + 60}
    linked = [False, True, False, False]

    async def forgotten() -> bool:
        return not linked.pop(0)

    async def taken(_number: int) -> None:
        raise busway.ServiceTaken("by somebody")

    reclaim._is_forgotten = forgotten  # type: ignore[method-assign]
    monkeypatch.setattr(bus._core, "result", taken)
    monkeypatch.setattr(service, "announce", lambda: 0)
    assert bus._core.connection is not None
    reclaim.refused(bus._core.connection, service, busway.ServiceTaken("by somebody"))
    assert (await next_event(events, "rejected")).topic == "mine"
    assert linked == []
