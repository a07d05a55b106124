"""Servers from a file, the servers.json of the mbus document: a server reads its entry, clients try all in order."""

import json
import re
import tempfile
from pathlib import Path

import busway

SERVERS = """[
    {"name": "srv1", "enabled": true,
     "address": {"region": "amer", "host": "alpha"},
     "connection": {"host": "127.0.0.1", "port": 1, "reconnectSchedule": "0D00:01"}},
    {"name": "srv2", "enabled": false,
     "address": {"region": "apac", "host": "beta"},
     "connection": {"host": "127.0.0.1", "port": 2, "reconnectSchedule": "0D00:01"}},
    {"name": "srv3", "enabled": true,
     "address": {"region": "emea", "host": "gamma"},
     "connection": {"host": "127.0.0.1", "port": 0, "reconnectSchedule": "0D00:01"}}
]"""


def read(file: Path) -> dict[str, dict]:
    return {entry["name"]: entry for entry in json.loads(file.read_text()) if entry["enabled"]}


def url(entry) -> str:
    return f"tcp://{entry['connection']['host']}:{entry['connection']['port']}"


def seconds(schedule: str) -> float:
    """Seconds of a time such as 0D00:01 or 0D00:00:10."""
    days, hours, minutes, rest = re.fullmatch(r"(\d+)D(\d\d):(\d\d)(?::(\d\d))?", schedule).groups()
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(rest or 0)


async def main():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "servers.json"
        file.write_text(SERVERS)

        # The server: its entry has its address and the fields that it adds to each message. (srv1 is down today.)
        own = read(file)["srv3"]
        async with busway.serve(url(own), name=own["name"], fields=own["address"]) as server:
            port = server.addresses[0].rpartition(":")[2]  # the file has 0: any free port
            file.write_text(SERVERS.replace('"port": 0', f'"port": {port}'))

            # A client tries all enabled servers in order, the first time at once, then with the delays of the file.
            servers = read(file).values()
            delays = [0.0, *(seconds(entry["connection"]["reconnectSchedule"]) for entry in servers)]
            async with busway.connect(*map(url, servers), name="hdb", reconnect=delays) as bus:
                print("tried", len(servers), "servers, found", bus.server["name"])
                async with bus.subscribe("event", where={"region": "emea"}) as events:
                    await bus.send("event", "hdb.reload")
                    print((await events.recv(timeout=5)).fields)


busway.run(main())
