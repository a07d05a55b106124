"""Typed protocols under a type checker: mypy in strict mode on a small program."""

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "typed_orders.py"

PROGRAM = """
import busway
import busway.sync

class Answer(busway.Protocol):
    text: str

class Ask(busway.Protocol[Answer], prefix="ask"):
    name: str
    tries: int = 1

async def main(bus: busway.Bus, blocking: busway.sync.Bus) -> None:
    reveal_type(await bus.request("", Ask(name="x")))
    reveal_type(await bus.request("sum", [1, 2]))
    reveal_type(await bus.publish("x", b"", confirm=True))
    async with bus.subscribe(Ask, "**") as typed, bus.subscribe("**") as plain:
        topic, value = await typed.recv()
        reveal_type(topic)
        reveal_type(value)
        async for received in typed:
            reveal_type(received.value)
        reveal_type(await plain.recv())
    async with bus.serve(Ask, "") as service:
        reveal_type((await service.recv()).value)
    reveal_type(blocking.request("", Ask(name="x")))
    with blocking.subscribe(Ask, "**") as both:
        reveal_type(both.recv().value)
    bus.serve(Ask, "", lambda ask: Answer(text=ask.name))
    Ask(nme="x")
    bus.serve(Ask, "", lambda ask: Answer(text=ask.nme))
    Ask(name="x").name = "y"
"""

EXPECTED = [
    'note: Revealed type is "program.Answer"',
    'note: Revealed type is "busway._core.Message"',
    'note: Revealed type is "int"',
    'note: Revealed type is "str"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "busway._core.Message"',
    'note: Revealed type is "program.Ask"',
    'note: Revealed type is "program.Answer"',
    'note: Revealed type is "program.Ask"',
    'error: Unexpected keyword argument "nme" for "Ask"',
    'error: "Ask" has no attribute "nme"',
    'error: Property "name" defined in "Ask" is read-only',
]


CHANNELS = """
import busway
import busway.sync

class Order(busway.Protocol, prefix="orders"):
    number: int

async def main(bus: busway.Bus, blocking: busway.sync.Bus) -> None:
    await bus.create_channel("s", "c", start="new", lease="5m", order_by="topic")
    blocking.create_channel("s", "c", start="new", lease="5m", order_by="topic")
    await bus.create_channel("s", "c", lesae="5m")
    await bus.update_channel("s", "c", max_deliveries="5")
    blocking.create_channel("s", "c", lesae="5m")
    blocking.update_channel("s", "c", max_deliveries="5")
    async with bus.channel(Order, "s", "c") as typed:
        await typed.dead(last=5, topic="t/**", redriven=True)
        await typed.redrive(since="1h", progress=print)
        await typed.dead(lats=5)
        await typed.redrive(since=5)
    with blocking.channel(Order, "s", "c") as both:
        both.dead(lats=5)
        both.redrive(since=5)
    with blocking.channel("s", "c") as plain:
        plain.dead(lats=5)
        plain.redrive(since=5)
"""

OPTIONS = """
import busway
import busway.sync

def main(bus: busway.Bus, server: busway.Server, blocking: busway.sync.Bus, channel: busway.sync.Channel) -> None:
    busway.connect("tcp://h:1", nmae="x")
    busway.sync.connect("tcp://h:1", wait=None)
    busway.serve("tcp://h:1", doors=[])
    busway.sync.serve("tcp://h:1", insecure=1)
    server.connect(wait=True)
    bus.subscribe("x", drain=1)
    blocking.subscribe("x", limti=1)
    blocking.serve("x", sharde=True)
    blocking.request("x", timeuot=1)
    reveal_type(busway.sync.connect(wait="5s"))
    reveal_type(busway.sync.serve(http="1").connect(name="x"))
    reveal_type(blocking.publish("x", confirm=True))
    reveal_type(blocking.publish("x", durable=True))
    reveal_type(blocking.publish_many("x", [1], durable=True, expires="1h"))
    reveal_type(blocking.subscribe("x", since="1h"))
    reveal_type(blocking.stream("s").read())
    reveal_type(blocking.request_many("x", [1], reply=int))
    reveal_type(channel.take(5))
    reveal_type(channel.dead(last=5))
"""
OPTIONS_EXPECTED = [
    'error: Unexpected keyword argument "nmae" for "connect"',
    'error: Argument "wait" to "connect" has incompatible type "None"',
    'error: Unexpected keyword argument "doors" for "serve"',
    'error: Argument "insecure" to "serve" has incompatible type "int"',
    'error: Unexpected keyword argument "wait" for "connect" of "Server"',
    'error: Unexpected keyword argument "drain" for overloaded function "subscribe" of "SubscribeVerbs"',
    'error: Unexpected keyword argument "limti" for overloaded function "subscribe" of "Bus"',
    'error: Unexpected keyword argument "sharde" for overloaded function "serve" of "Bus"',
    'error: Unexpected keyword argument "timeuot" for overloaded function "request" of "RequestVerbs"',
    *[
        f'note: Revealed type is "{revealed}"'
        for revealed in (
            "busway.sync.bus.Bus",
            "busway.sync.bus.Bus",
            "int",
            "tuple[str, str, int, int, fallback=busway.positions.Position]",
            "busway.positions.Placed",
            "busway.sync.subscription.Subscription[busway._core.Message]",
            "typing.Generator[list[busway._core.Message], None, None]",
            "busway.sync.generated.requests.Gathering[tuple[str, int, fallback=busway.client.typed.protocol.Received[int]]]",
            "list[busway._core.Message]",
            "list[busway.dead_letters.DeadLetter]",
        )
    ],
]


ORDERS = """
from dataclasses import dataclass

import busway
import busway.sync
from typed_orders import Balance, GetBalance, OrderPlaced

@busway.protocol(prefix="double")
@dataclass
class Double(busway.WithReply[int]):
    number: int

@busway.protocol(prefix="other")
@dataclass
class Other:
    number: int

async def wrong(request: GetBalance) -> int:
    return request.account

def double(request: Double) -> int:
    return 2 * request.number

def text(request: Double) -> str:
    return str(request.number)

async def main(bus: busway.Bus, blocking: busway.sync.Bus) -> None:
    reveal_type(await bus.request("", GetBalance(account=1), timeout=2))
    reveal_type(await bus.request("", Double(number=1)))
    reveal_type(await bus.request("", Other(number=1), reply=Balance))
    reveal_type(await bus.request("sum", [1, 2], reply=list[int]))
    reveal_type((await bus.request_all("", GetBalance(account=1)))[0].value)
    reveal_type([one.value async for one in bus.request_many("", Double(number=1))])
    reveal_type(blocking.request("", GetBalance(account=1)))
    async with bus.channel(OrderPlaced, "orders", "billing") as channel:
        delivered = await channel.recv(timeout=1)
        topic, value = delivered
        reveal_type(delivered.value)
        reveal_type(value)
        reveal_type(await delivered.ack())
        reveal_type([one.value for one in await channel.take(10)])
        async for received in channel:
            reveal_type(received.value)
    with blocking.channel(Double, "s", "c") as jobs:
        reveal_type(jobs.recv().value)
        reveal_type(jobs.recv().ack())
    reveal_type(bus.serve(GetBalance, ""))
    reveal_type(bus.serve(Double, "", double))
    reveal_type(bus.serve(Other, "", lambda other: other.number))
    bus.serve(GetBalance, "", wrong)
    bus.serve(Double, "", text)
    blocking.serve(Double, "", text)
    bus.channel(OrderPlaced, "orders", "billing", handler=double)
"""

SERVICE = "busway.client.typed_wrappers.wrappers.TypedService[{}]"
REVEALED = [
    "typed_orders.Balance",
    "int",
    "typed_orders.Balance",
    "list[int]",
    "typed_orders.Balance",
    "list[int]",
    "typed_orders.Balance",
    "typed_orders.OrderPlaced",
    "typed_orders.OrderPlaced",
    "None",
    "list[typed_orders.OrderPlaced]",
    "typed_orders.OrderPlaced",
    "orders.Double",
    "None",
    SERVICE.format("typed_orders.GetBalance"),
    SERVICE.format("orders.Double"),
    SERVICE.format("orders.Other"),
]
REFUSED = [
    'error: Argument 3 to "serve" of "SubscribeVerbs" has incompatible type "Callable[[GetBalance], Coroutine[Any, Any, int]]"; ',
    'error: Argument 3 to "serve" of "SubscribeVerbs" has incompatible type "Callable[[Double], str]"; expected "Callable[[Double], int',
    'error: Argument 3 to "serve" of "Bus" has incompatible type "Callable[[Double], str]"; expected "Callable[[Double], int',
    'error: Argument "handler" to "channel" of "ChannelVerbs" has incompatible type "Callable[[Double], int]"; ',
]


SETTINGS = """
from dataclasses import replace
from datetime import timedelta

import busway
from busway.cluster.config import Cluster
from busway.gateway.files.config import Mount
from busway.gateway.json.config import Http

settings = busway.Settings(heartbeat="5s", drain=timedelta(seconds=2), stall=0, frame=1 << 20)
reveal_type(settings.heartbeat)
reveal_type(replace(settings, grace="1m").grace)
reveal_type(busway.Buffer(age="1h").age)
reveal_type(Cluster(mirror_wait=timedelta(minutes=1)).mirror_wait)
reveal_type(Http(slow="2s", idle=60).idle)
reveal_type(Mount(request="2s").request)
busway.Settings(heartbeat=None)
busway.Settings(frame="8m")
settings.heartbeat = 1.0
"""
SETTINGS_EXPECTED = [
    *['note: Revealed type is "float"'] * 6,
    'error: Argument "heartbeat" to "Settings" has incompatible type "None"; expected "float | str | timedelta"',
    'error: Argument "frame" to "Settings" has incompatible type "str"; expected "int"',
    'error: Property "heartbeat" defined in "Settings" is read-only',
]


def checked(folder: Path, name: str, program: str) -> list[str]:
    """What mypy says of a program, in strict mode."""
    (folder / name).write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", folder / "cache"]
    result = subprocess.run([*command, name], cwd=folder, capture_output=True, text=True, timeout=170, check=False)
    assert not result.stderr, result.stderr
    lines = result.stdout.replace("builtins.", "").splitlines()
    assert all(line.startswith(name) for line in lines), result.stdout
    return [line.split(": ", 1)[1] for line in lines]


def test_types_are_known(tmp_path: Path) -> None:
    lines = checked(tmp_path, "program.py", PROGRAM)
    assert len(lines) == len(EXPECTED), lines
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert line.startswith(expected), lines


def test_keywords_of_channels_are_checked(tmp_path: Path) -> None:
    lines = checked(tmp_path, "channels.py", CHANNELS)
    starts = [f'error: Unexpected keyword argument "{name}"' for name in ("lesae", "lesae", "lats", "lats", "lats")]
    starts += ['error: Argument "max_deliveries" to "update_channel"'] * 2
    starts += ['error: Argument "since" to "redrive"'] * 3
    lines = [line for line in lines if line.startswith("error")]
    assert len(lines) == len(starts), lines
    for line, start in zip(sorted(lines), sorted(starts), strict=True):
        assert line.startswith(start), lines


def test_options_are_checked_in_both_apis(tmp_path: Path) -> None:
    lines = checked(tmp_path, "options.py", OPTIONS)
    lines = [line for line in lines if line.startswith(("error", "note: Revealed")) and "No overload" not in line]
    assert len(lines) == len(OPTIONS_EXPECTED), lines
    for line, expected in zip(lines, OPTIONS_EXPECTED, strict=True):
        assert line.startswith(expected), line


def test_durations_of_settings_are_given_in_each_form_and_read_as_floats(tmp_path: Path) -> None:
    lines = checked(tmp_path, "settings_program.py", SETTINGS)
    assert len(lines) == len(SETTINGS_EXPECTED), lines
    for line, expected in zip(lines, SETTINGS_EXPECTED, strict=True):
        assert line.startswith(expected), lines


def test_a_typed_channel_a_pydantic_service_and_its_caller(tmp_path: Path) -> None:
    """No value is of the type Any, and a handler that returns something else than the declared reply is an error."""
    shutil.copy(EXAMPLE, tmp_path)
    lines = checked(tmp_path, "orders.py", ORDERS)
    expected = [f'note: Revealed type is "{revealed}"' for revealed in REVEALED] + REFUSED
    assert not [line for line in lines if "Revealed" in line and "Any" in line]
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), line
