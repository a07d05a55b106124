"""A trading day: processes that know nothing of each other but the bus find, configure, watch and replace each other.

Real processes, this file with a role each: a broker, a manager, a ticker, two databases and a gateway. The manager pins
their configurations, learns which processes run before it starts others, and detects a dead one by its withdrawn post.
The ticker posts its address, the databases connect to it, and the gateway collects the offers of the databases by the
names of their fields. Every process reports its actions on the topic `story`; this program prints them, and ends with
another status than 0 if the story is not the expected one.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter

import busway

PATIENCE = 30.0  # nothing here waits longer
CONFIG = {
    "ticker": {"source": "eurex", "prices": {"FDAX": 18310.5, "FGBL": 132.4}},
    "hdb-1": {"source": "eurex", "symbol": "FDAX"},
    "hdb-2": {"source": "eurex", "symbol": "FGBL"},
    "gateway": {"offer": "trades"},
}
STORY = Counter({
    "manager: pinned the configuration of ticker, hdb-1, hdb-2, gateway": 1,
    "manager: hdb-1 is here already, it is started; so I start ticker, hdb-2, gateway": 1,
    "hdb-1: found the ticker by its post, FDAX is at 18310.5": 1,
    "hdb-2: found the ticker by its post, FGBL is at 132.4": 2,  # it is started twice
    "gateway: trades are offered by 1 database": 2,
    "gateway: trades are offered by 2 databases": 2,
    "manager: all are up": 1,
    "manager: the post of hdb-2 was withdrawn, its process ended by signal 9; I start it again": 1,
    "manager: all are up again": 1,
    "manager: gateway, hdb-2, hdb-1, ticker have taken their posts back; good night": 1,
})  # fmt: skip


async def start(role: str, *arguments: str, **pipes: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, role, *arguments, **pipes)


async def tell(bus: busway.Bus, text: str) -> None:
    await bus.publish("story", f"{bus.name}: {text}")


# The broker: pins are in its data folder, and a lost client has half a second to come back.


async def broker(folder: str) -> None:
    async with busway.serve("tcp://127.0.0.1:0", data=folder, settings=busway.Settings(grace=0.5)) as server:
        print(server.addresses[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until the parent process ends or closes the pipe


# The workers. Each identifies itself by the fields of its connection, and posts its state.


def member(url: str, name: str, kind: str) -> busway.Bus:
    return busway.connect(
        url, name=name, fields={"pmanager": "pm", "process": name, "procType": kind}, reconnect=None, timeout=PATIENCE
    )


async def post_state(bus: busway.Bus, state: str) -> None:
    await bus.post("process", state, fields={"event": "state", "pid": os.getpid()})


async def configured(bus: busway.Bus) -> dict:
    """Wait for the configuration of this process, pinned before or now."""
    await post_state(bus, "started")
    async with bus.subscribe("config", where={"process": bus.name, "cmd": "setCfg"}) as configs:
        config = (await configs.recv(timeout=PATIENCE)).json()
    await post_state(bus, "configured")
    return config


async def work_until_stopped(bus: busway.Bus) -> None:
    async with bus.subscribe("stop", where={"process": bus.name}) as stop:
        await post_state(bus, "inited")
        await stop.recv()


async def ticker(url: str, name: str) -> None:
    # Ticks don't use the shared bus: the ticker has a bus of its own, and posts its address.
    async with member(url, name, "ticker") as bus, busway.serve("tcp://127.0.0.1:0") as own, own.connect() as feed:
        config = await configured(bus)
        async with feed.serve("last", lambda message: config["prices"][message.text]):
            await bus.post("found", own.addresses[0], fields={"source": config["source"]})
            await work_until_stopped(bus)


async def database(url: str, name: str) -> None:
    async with member(url, name, "hdb") as bus:
        config = await configured(bus)
        async with bus.subscribe("found", where={"procType": "ticker", "source": config["source"]}) as found:
            place = (await found.recv(timeout=PATIENCE)).text
        async with busway.connect(place, name=name, reconnect=None) as feed:
            price = await feed.request("last", config["symbol"], timeout=PATIENCE)
        await tell(bus, f"found the ticker by its post, {config['symbol']} is at {price.json()}")
        await bus.post("api", ["select", "aggregate"], fields={"apiInfo": "trades", "pid": os.getpid()})
        await work_until_stopped(bus)


async def gateway(url: str, name: str) -> None:
    async with member(url, name, "gateway") as bus:
        config = await configured(bus)
        offers = {}

        async def collect(message: busway.Message) -> None:
            if message.kind == "withdrawn":
                del offers[message.fields["pid"]]
            else:
                offers[message.fields["pid"]] = message.json()
            databases = f"{len(offers)} database{'s' * (len(offers) != 1)}"
            await tell(bus, f"{config['offer']} are offered by {databases}")

        rules = {"apiInfo": config["offer"], "pid": busway.ANY}
        async with bus.subscribe("**", where=rules, watch=True, handler=collect):  # on any topic
            await work_until_stopped(bus)


# The manager.


class Manager:
    def __init__(self, bus: busway.Bus, states: busway.Subscription, url: str) -> None:
        self.bus, self.states, self.url = bus, states, url
        self.known: dict[str, str] = {}
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def learn(self) -> busway.Message:
        """Wait for the next state or withdrawal."""
        message = await self.states.recv(timeout=PATIENCE)
        if message.kind == "withdrawn":
            del self.known[message.fields["process"]]
        elif message.kind != "notify":
            self.known[message.fields["process"]] = message.text
        return message

    async def start(self, name: str) -> None:
        self.running[name] = await start(name.partition("-")[0], self.url, name)

    async def all_up(self) -> None:
        while self.known != dict.fromkeys(CONFIG, "inited"):
            await self.learn()

    async def ended(self, name: str) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.running.pop(name).wait()

    async def day(self) -> None:
        for name, config in CONFIG.items():
            await self.bus.pin("config", config, fields={"process": name, "cmd": "setCfg"})
        await tell(self.bus, f"pinned the configuration of {', '.join(CONFIG)}")

        missing = [name for name in CONFIG if name not in self.known]
        here = ", ".join(f"{name} is here already, it is {state}" for name, state in self.known.items())
        await tell(self.bus, f"{here}; so I start {', '.join(missing)}")
        for name in missing:
            await self.start(name)
        await self.all_up()
        await tell(self.bus, "all are up")

        while (message := await self.learn()).kind != "withdrawn":
            pass
        name = message.fields["process"]
        status = await self.ended(name)
        await tell(
            self.bus, f"the post of {name} was withdrawn, its process ended by signal {-status}; I start it again"
        )
        await self.start(name)
        await self.all_up()
        await tell(self.bus, "all are up again")

        stopped = []
        for name in ("gateway", "hdb-2", "hdb-1", "ticker"):
            await self.bus.send("stop", fields={"process": name})
            while (message := await self.learn()).kind != "withdrawn":
                pass
            stopped.append(message.fields["process"])
        await tell(self.bus, f"{', '.join(stopped)} have taken their posts back; good night")
        statuses = {name: await self.ended(name) for name in list(self.running)}
        if any(statuses.values()):
            raise SystemExit(f"some processes did not end well: {statuses}")


async def manager(url: str) -> None:
    rules = {"pmanager": "pm", "process": busway.ANY, "event": busway.ANY}
    async with (
        busway.connect(url, name="manager", fields={"pmanager": "pm"}, reconnect=None) as bus,
        bus.subscribe("process", where=rules, notify=True, watch=True) as states,
    ):
        mine = Manager(bus, states, url)
        while (await mine.learn()).kind != "notify":
            pass  # the retained states come first
        await mine.day()


# The day.


async def told(story: busway.Subscription, lines: Counter, *awaited: str) -> None:
    """Print the story until all awaited lines have come."""
    missing = set(awaited)
    while missing:
        line = (await story.recv(timeout=PATIENCE)).text
        print(line)
        lines[line] += 1
        missing.discard(line)


async def day(folder: str) -> None:
    processes = []

    async def started(*arguments: str, **pipes: int) -> asyncio.subprocess.Process:
        processes.append(await start(*arguments, **pipes))
        return processes[-1]

    try:
        bus_process = await started("broker", folder, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE):
            url = (await bus_process.stdout.readline()).decode().strip()
        async with busway.connect(url, reconnect=None) as bus, bus.subscribe("story") as story:
            lines: Counter = Counter()
            async with bus.subscribe("process") as states:
                await started("hdb", url, "hdb-1")  # it has been running since yesterday
                await states.recv(timeout=PATIENCE)
            await started("manager", url)
            await told(story, lines, "manager: all are up", "gateway: trades are offered by 2 databases")

            (victim,) = await bus.kept("process", where={"process": "hdb-2"})
            print(f"(hdb-2, {victim.text}, is killed)")
            os.kill(victim.fields["pid"], signal.SIGKILL)
            await told(story, lines, "gateway: trades are offered by 1 database")
            await told(story, lines, "manager: all are up again", "gateway: trades are offered by 2 databases")
            await told(story, lines, "manager: gateway, hdb-2, hdb-1, ticker have taken their posts back; good night")
            if lines != STORY:
                raise SystemExit(f"the story went another way; missing: {STORY - lines}, not expected: {lines - STORY}")
            pins = await bus.kept("config")
            print(f"kept for tomorrow: the configuration of {', '.join(pin.fields['process'] for pin in pins)}")
        bus_process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            statuses = [await process.wait() for process in reversed(processes)]
        if any(statuses):
            raise SystemExit(f"not all ended well: {statuses}")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()  # the processes that the manager started end with the broker
                await process.wait()


ROLES = {"broker": broker, "ticker": ticker, "hdb": database, "gateway": gateway, "manager": manager}

if len(sys.argv) > 1:
    busway.run(ROLES[sys.argv[1]](*sys.argv[2:]))
else:
    with tempfile.TemporaryDirectory() as data:
        busway.run(day(data))
