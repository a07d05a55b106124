"""Every example runs by itself, ends, and prints the expected output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "start_server.py": ["listening on unix:./my_bus", "listening on tcp://127.0.0.1:", "stopped"],
    "connect.py": [
        "hello from the client in memory",
        "hello from the client over unix",
        "hello from the client over tcp",
    ],
    "publish_subscribe.py": ["hello/alice: Hello Alice"],
    "request_reply.py": [
        "by hand: Hello Alice",
        "with a handler: Hello Bob",
        "the service says: ",
        "nobody to greet",
        "nobody serves: ",
    ],
    "typed_orders.py": [
        "orders/eu 1: billed\norders/eu 2: has only 5\norders/us 4: billed\n",
        "dead: account 9 is unknown\n",
        "dead: $.amount: expected int, got str (type OrderPlaced)\n",
        "refused: PayloadError account\n",
    ],
    "chat.py": [
        "alice in the lobby (lobby/alice)\n  lobby/alice: hello lobby\n  */alice: I am leaving\n",
        "everybody in the lobby (lobby/*)\n",
        "  lobby/carol: hello alice",
        "alice in all rooms (*/alice)\n  lobby/alice: hello lobby\n  kitchen/alice: who is here?\n  */alice: I am leaving\n",
        "everything (**)\n",
    ],
    "workers.py": ["jobs done: 10 by 2 workers", "nobody took it: "],
    "reconnect.py": ["event: lost", "event: resumed", "server: second", "written while offline"],
    "slow_consumer.py": ["first message that is left: 900", "missed before it: 900", "still waiting: 99"],
    "blocking.py": ["price/eth/eur 3012.5\nprice/btc/eur 61000\nprice/btc/eur 61001\nsum: 6\n"],
    "addresses.py": [
        "pattern: stock hdb, fx hstat\nfunction: stock hdb, fx hstat\nlist: stock hdb, fx hstat\n",
        "extra by name: stock hdb\nextra by function: fx hstat\nsender: fx hstat\npayload: fx hstat\n",
        "refused: ",
    ],
    "kept_messages.py": [
        "kept: post state: ready\nkept: pin schema: trade(time, sym, price)\nthat was everything\n",
        "live: busy\nwithdrawn: state of hdb\n",
        "after a restart: pin schema: trade(time, sym, price)\nunpinned: True\nleft: 0\n",
    ],
    "stored_messages.py": [
        "stored: orders 2 3\nbilling: {'id': 1}\nbilling: {'id': 2}\n",
        "billing goes on: {'id': 3}\nand is live: {'id': 4}\n",
        "of europe: [1, 2, 3]\nholds: orders/eu 3\nholds: orders/us 1\nremoved: 4\n",
    ],
    "acknowledged_jobs.py": [
        "done by the first: 0\ndead: dead/jobs/billing 7 after 2 deliveries\n",
        "done by the second: [1, 2, 3, 4, 5, 6, 8, 9]\neverything before 10 is done, lag 0\n",
    ],
    "server_list.py": ["tried 2 servers, found srv3\n", "{'region': 'emea', 'host': 'gamma'}"],
    "shared_services.py": [
        "17: breaker closed\n21: transformer at 71 °C\n99: nobody is willing ",
        "north has 17\nnorth has 18\nsouth has 21\n",
        "3 replies, failed: [('control', 'no connection to the field')]\n",
        "seen: request scada/device 17\nseen: request scada/device 21\nseen: request scada/device 99\n",
    ],
    "trading_day.py": [
        "manager: hdb-1 is here already, it is started; so I start ticker, hdb-2, gateway\n",
        "(hdb-2, inited, is killed)\n",
        "manager: the post of hdb-2 was withdrawn, its process ended by signal 9; I start it again\n",
        "manager: all are up again\n",
        "kept for tomorrow: the configuration of ticker, hdb-1, hdb-2, gateway\n",
    ],
    "mutual_tls.py": ["the broker knows this client as sensor-7.example.org", "without a certificate: "],
}

LOGS = {
    "reconnect.py",
    "request_reply.py",
    "slow_consumer.py",
    "typed_orders.py",
}  # on purpose a handler raises, a payload does not fit, or a connection is lost, and that is logged


def test_every_example_is_run():
    assert {path.name for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BUSWAY_")}
    result = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert bool(result.stderr) == (name in LOGS), result.stderr
    place = 0
    for text in EXPECTED[name]:
        place = result.stdout.find(text, place)
        assert place >= 0, f"{text!r} is missing or out of order in:\n{result.stdout}"
    assert list(tmp_path.iterdir()) == []
