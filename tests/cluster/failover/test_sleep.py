"""A node that has slept notices that by its clocks, and doubts the links that it had until they answer."""

import asyncio
import os
import signal

import pytest

import busway
from busway.cluster.failover.sleep import SleepDetector
from tests.support.mirror_processes import is_mirrored, make_mirrored


class Links:
    """What was sent over links."""

    def __init__(self) -> None:
        self.pings: list[tuple[int, int]] = []
        self.waking = SleepDetector(lambda conn, token: self.pings.append((conn, token)))

    def look(self, now: float, clock: float | None = None) -> bool:
        return self.waking.look(now, now if clock is None else clock, [1, 2])


def test_who_looks_every_second_has_not_slept() -> None:
    links = Links()
    assert not any(links.look(1000.0 + now) for now in range(10))
    assert not links.look(1012.0), "it was only slow"
    assert not links.pings
    assert links.waking.closed(1, 1012.5) == 1012.5


@pytest.mark.parametrize(("now", "clock"), [(60.0, 60.0), (1.0, 60.0)])
def test_either_clock_tells(now: float, clock: float) -> None:
    """That of the loop may stand still while a host is suspended."""
    links = Links()
    links.look(0.0)
    assert links.look(now, clock)
    assert [conn for conn, _ in links.pings] == [1, 2]
    assert not links.look(now + 1, clock + 1)


def test_a_link_is_doubted_until_it_answers() -> None:
    links = Links()
    links.look(0.0)
    links.look(60.0)
    (_, old), _ = links.pings
    links.look(61.0)
    links.look(100.0)
    (_, new), _ = links.pings[2:]
    assert not links.waking.pong(1, old)
    assert links.waking.pong(2, new)
    assert [links.waking.doubts(conn) for conn in (1, 2)] == [True, False]
    assert links.waking.closed(1, 101.0) == 0.0, "what was asked before it slept again proves nothing"
    assert links.waking.closed(2, 101.0) == 101.0
    assert links.waking.closed(1, 102.0) == 102.0


@pytest.mark.timeout(180)
async def test_a_mirror_process_that_was_stopped_does_not_take_over_with_what_it_knew_before(processes):
    """Its node acknowledged without it and was killed; what is done is not handed out again."""
    a = await processes("a")
    b = await processes("b", "--servers", a.address, "--mirror-of", "a")
    c = await processes("c", "--servers", f"{a.address},{b.address}")
    async with busway.connect(c.address, learn=False) as far:
        async with busway.connect(a.address, learn=False, reconnect=None) as bus:
            await make_mirrored(bus)
            await is_mirrored(bus, "orders")
            for number in range(4):
                await bus.publish("orders/1", str(number).encode(), durable=True)
            async with bus.channel("orders", "work", window=2) as work:
                await (await work.recv(60)).ack()
                os.kill(b._process.pid, signal.SIGSTOP)
                try:
                    await (await work.recv(60)).ack()  # waits until the mirror can't begin any more
                    await a.end(signal.SIGKILL)
                finally:
                    os.kill(b._process.pid, signal.SIGCONT)
        async with (
            busway.connect(b.address, learn=False) as there,
            there.subscribe("$bus/cluster/*") as happens,
            far.channel("orders", "work", window=4) as rest,
            asyncio.timeout(60),
        ):
            while (event := await happens.recv()).fields["kind"] not in {"takeover", "copy_waits"}:
                pass
            assert event.fields["kind"] == "copy_waits", event.text
            a._arguments += ["--servers", f"{b.address},{c.address}"]
            await a.start()
            assert [(await rest.recv()).text for _ in range(2)] == ["2", "3"]
