"""Every parameter that is a length of time takes seconds, text such as 5s, or a timedelta; errors name it."""

from datetime import timedelta

import pytest

import busway
import busway.sync
from busway.cluster.config import Cluster
from busway.common.durations import duration
from busway.gateway.files.config import Mount
from busway.gateway.json.config import Http
from busway.settings import Buffer, Settings
from tests.support.net import PATIENCE

FORMS = [PATIENCE, f"{PATIENCE:g}s", timedelta(seconds=PATIENCE)]


class Hello(busway.Protocol, prefix="hello", reply=int):
    name: str


@pytest.mark.parametrize("form", FORMS, ids=["seconds", "text", "timedelta"])
async def test_the_asyncio_face_takes_each_form(form: object) -> None:
    times: dict[str, object] = {"timeout": form}
    async with (
        busway.serve() as server,
        server.connect(drain=form, timeout=form, reconnect=["1ms", timedelta(seconds=1), 5]) as bus,  # type: ignore[arg-type]
    ):
        await bus.create_stream("s", topics=["t/**", "hello/**"], max_age=form)
        async with (
            bus.subscribe("t/**", patience=form) as plain,
            bus.subscribe(Hello, "**") as typed,
            bus.channel("s", "c", lease=form, max_processing=form) as channel,
            bus.channel(Hello, "s", "typed") as jobs,
            bus.serve("double", lambda message: message.payload * 2),
            bus.serve(Hello, "", lambda hello: len(hello.name)),
        ):
            await bus.publish("t/a", b"1", durable=True, expires=form)
            await bus.publish("", Hello(name="x"), durable=True)
            assert (await plain.recv(**times)).payload == b"1"
            assert (await typed.recv(**times)).value.name == "x"
            message = await channel.recv(**times)
            await message.nack(delay="1ms")
            assert (await channel.take(1, **times))[0].payload
            assert (await jobs.take(1, **times, whole=True))[0].value.name == "x"
            assert (await bus.request("double", b"1", **times, each="1s")).payload == b"11"
            assert await bus.request("", Hello(name="xyz"), **times) == 3
            assert len(await bus.request_all("double", b"1", **times)) == 1
            async with bus.subscribe("job"):
                await bus.push("job", b"1", **times)
            await bus.flush(**times)
            assert await bus.rtt(**times) >= 0
            bus.feed(form)
        await bus.drain("5s")
        await server.stop("5s")


@pytest.mark.parametrize("form", FORMS, ids=["seconds", "text", "timedelta"])
def test_the_blocking_face_takes_each_form(form: object) -> None:
    times: dict[str, object] = {"timeout": form}
    with busway.sync.serve() as server, server.connect(drain=form, timeout=form) as bus:  # type: ignore[arg-type]
        bus.create_stream("s", topics=["t/**", "hello/**"], max_age=form)
        with (
            bus.subscribe("t/**", patience=form) as plain,
            bus.channel("s", "c", lease=form) as channel,
            bus.channel(Hello, "s", "typed") as jobs,
            bus.serve("double", lambda message: message.payload * 2),
        ):
            bus.publish("t/a", b"1", durable=True, expires=form)
            bus.publish("", Hello(name="x"), durable=True)
            assert plain.recv(**times).payload == b"1"
            assert channel.take(1, **times)
            assert jobs.recv(**times).value.name == "x"
            assert bus.request("double", b"1", **times).payload == b"11"
            bus.flush(**times)
        bus.drain("5s")
        server.stop("5s")


def test_settings_take_each_form() -> None:
    assert Settings(heartbeat="1m", drain=timedelta(seconds=2)) == Settings(heartbeat=60.0, drain=2.0)
    assert Buffer(age="1h").age == 3600.0
    assert Http(address="127.0.0.1:0", call="2s").call == 2.0
    assert Cluster(mirror_wait=timedelta(minutes=1)) == Cluster(mirror_wait=60.0)
    assert Mount(request="2s").request == 2.0


async def test_errors_name_the_parameter_and_the_forms() -> None:
    async with busway.serve() as server, server.connect() as bus, bus.subscribe("t") as sub:
        calls = {
            "timeout": lambda value: bus.request("x", timeout=value),
            "each": lambda value: bus.request("x", each=value),
        }
        for name, call in calls.items():
            with pytest.raises(
                ValueError, match=f"{name}: 'soon' is not a length of time; give seconds, text such as 5s"
            ):
                await call("soon")
            with pytest.raises(TypeError, match=f"{name} must be a length of time: seconds, text such as 5s"):
                await call([])
        with pytest.raises(ValueError, match="timeout: 'soon' is not a length of time"):
            await sub.recv(timeout="soon")
        with pytest.raises(ValueError, match="patience: '5' is not a length of time"):
            bus.subscribe("t", patience="5")
        with pytest.raises(ValueError, match="drain: 'x' is not a length of time"):
            busway.connect("tcp://127.0.0.1:1", drain="x")


@pytest.mark.parametrize(("text", "expected"), [("250ms", 0.25), ("1h30m", 5400.0), ("0s", 0.0), ("1.5s", 1.5)])
def test_texts(text: str, expected: float) -> None:
    assert duration("x", text) == expected
