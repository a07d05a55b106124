"""The simulated network: arrival times, delays, and the end of a connection at each side."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from busway.testing.simulation.transport import SimulatedTransport
from busway.testing.simulation.world import World
from busway.transport import dial, listen, parse

PLACE = "sim://there:1"


class Peer(asyncio.BufferedProtocol):
    """Notes what it gets, and when."""

    def __init__(self) -> None:
        self.data = b""
        self.times: list[float] = []
        self.ends: list[Exception | None] = []
        self.flow: list[str] = []
        self._buffer = bytearray(65536)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.end = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]
        self.times.append(self.end.process and asyncio.get_running_loop().time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def pause_writing(self) -> None:
        self.flow.append("pause")

    def resume_writing(self) -> None:
        self.flow.append("resume")


class Scene:
    """A listener on one host, a client on another, and the connection between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = world.network
        self.network.delay, self.network.jitter = 0.1, 0.0
        self.mine = Peer()
        self.its = Peer()
        self.failed: BaseException | None = None

    async def serve(self) -> None:
        await listen(parse(PLACE), lambda: self.its)

    async def connect(self) -> None:
        try:
            await dial(parse(PLACE), lambda: self.mine, timeout=5.0)
        except OSError as error:
            self.failed = error
        except Exception as error:
            self.failed = error

    async def joined(self) -> None:
        self.server = self.world.launch("server", "there", self.serve)
        await asyncio.sleep(0)
        self.client = self.world.launch("client", "here", self.connect)
        await asyncio.sleep(1.0)
        assert self.failed is None

    def write(self, end: SimulatedTransport, data: bytes) -> None:
        self.world.loop.enter(end.process, end.write, data)


def played(world: World, play: Coroutine[Any, Any, None]) -> None:
    world.run(play)
    assert world.loop.failures == []


def test_bytes_come_in_order_after_their_delay(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        scene.network.choppy = 1.0
        await scene.joined()
        for number in range(20):
            scene.write(scene.mine.end, b"%03d" % number)
        await asyncio.sleep(1.0)
        assert scene.its.data == b"".join(b"%03d" % number for number in range(20))
        assert scene.its.times[0] == pytest.approx(1.1)
        assert len(scene.its.times) > 20, "they were cut up"

    played(world, play())


def test_a_narrow_way_takes_its_time(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        scene.network.path("here", "there").bandwidth = 1000.0
        scene.write(scene.mine.end, bytes(5000))
        await asyncio.sleep(4.0)
        assert 1000 < len(scene.its.data) < 4000, "packet by packet"
        await asyncio.sleep(0.9)
        assert len(scene.its.data) < 5000
        await asyncio.sleep(0.3)
        assert len(scene.its.data) == 5000

    played(world, play())


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_what_is_held_up_comes_when_the_way_is_open(world: World, way: str) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        network = scene.network
        if way != "down":
            network.block("here", "there")
        if way != "up":
            network.block("there", "here")
        scene.write(scene.mine.end, b"up")
        scene.write(scene.its.end, b"down")
        await asyncio.sleep(100.0)
        assert scene.its.data == (b"up" if way == "down" else b"")
        assert scene.mine.data == (b"down" if way == "up" else b"")
        network.heal()
        scene.write(scene.mine.end, b"!")
        await asyncio.sleep(1.0)
        assert (scene.its.data, scene.mine.data) == (b"up!", b"down")
        assert not scene.mine.ends
        assert not scene.its.ends

    played(world, play())


def test_a_paused_reader_stops_the_writer(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        writer, reader = scene.mine, scene.its
        writer.end.set_write_buffer_limits(high=1000, low=100)
        reader.end.pause_reading()
        scene.write(writer.end, bytes(scene.network.window + 5000))
        await asyncio.sleep(1.0)
        assert writer.flow == ["pause"]
        assert writer.end.get_write_buffer_size() == 5000
        assert reader.data == b""
        world.loop.enter(reader.end.process, reader.end.resume_reading)
        await asyncio.sleep(2.0)
        assert writer.flow == ["pause", "resume"]
        assert len(reader.data) == scene.network.window + 5000

    played(world, play())


def test_closing_delivers_what_was_written_first(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        scene.write(scene.mine.end, b"goodbye")
        world.loop.enter(scene.mine.end.process, scene.mine.end.close)
        await asyncio.sleep(1.0)
        assert scene.its.data == b"goodbye"
        assert (scene.mine.ends, scene.its.ends) == ([None], [None])

    played(world, play())


@pytest.mark.parametrize("how", ["reset", "cut", "abort", "killed"])
def test_both_ends_hear_of_the_end_once(world: World, how: str) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        if how == "killed":
            world.kill(scene.server)
        elif how == "abort":
            world.loop.enter(scene.its.end.process, scene.its.end.abort)
        else:
            getattr(scene.its.end, how)()
        scene.write(scene.mine.end, b"too late")
        await asyncio.sleep(1.0)
        assert scene.its.data == b""
        assert [type(error) for error in scene.mine.ends] == [type(None) if how == "cut" else ConnectionResetError]
        assert len(scene.its.ends) == (0 if how == "killed" else 1)

    played(world, play())


def test_of_a_half_open_connection_one_end_hears_nothing(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        scene.mine.end.lose_silently()
        scene.write(scene.its.end, b"anybody?")
        await asyncio.sleep(1000.0)
        assert [type(error) for error in scene.mine.ends] == [ConnectionResetError]
        assert scene.its.ends == []
        assert scene.mine.data == b""

    played(world, play())


def test_a_host_without_power_is_silent_until_it_is_back(world: World) -> None:
    async def play() -> None:
        scene = Scene(world)
        await scene.joined()
        scene.network.dark.add("there")
        scene.server.alive = False
        scene.network.died(scene.server, reset=False)
        scene.write(scene.mine.end, b"anybody?")
        await asyncio.sleep(100.0)
        assert scene.mine.ends == []
        scene.network.dark.clear()
        scene.write(scene.mine.end, b"and now?")
        await asyncio.sleep(1.0)
        assert [type(error) for error in scene.mine.ends] == [ConnectionResetError]

    played(world, play())


@pytest.mark.parametrize(
    ("state", "text"),
    [("nobody", "no server listens"), ("dark", "no answer within 5 s"), ("blocked", "no answer within 5 s")],
)
def test_who_can_not_connect_is_told_why(world: World, state: str, text: str) -> None:
    async def play() -> None:
        scene = Scene(world)
        if state == "dark":
            scene.network.dark.add("there")
        elif state == "blocked":
            world.launch("server", "there", scene.serve)
            scene.network.block("there", "here")
        world.launch("client", "here", scene.connect)
        await asyncio.sleep(10.0)
        assert text in str(scene.failed)
        scene.network.heal()
        await asyncio.sleep(1.0)
        if state == "blocked":
            assert len(scene.its.ends) == 1, "the listener's end does not stay"

    played(world, play())


def test_what_is_sent_before_the_other_side_knows_of_the_connection_comes_behind_that(world: World) -> None:
    """The answer to its dialling is held up, and so is what comes after it; the order stays."""
    scene = Scene(world)

    class Quick(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.end.write(b"welcome")
            self.end.close()

    scene.its = Quick()

    async def main() -> None:
        scene.network.block("there", "here")
        world.launch("server", "there", scene.serve)
        await asyncio.sleep(0.1)
        world.launch("client", "here", scene.connect)
        await asyncio.sleep(1.0)
        assert not hasattr(scene.mine, "end")
        scene.network.unblock("there", "here")
        await asyncio.sleep(1.0)

    world.run(main())
    assert scene.failed is None
    assert scene.mine.data == b"welcome"
    assert scene.mine.ends == [None]
    assert world.loop.failures == []
