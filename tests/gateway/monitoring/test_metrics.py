"""Metrics: their names, their values, and the limited number of series."""

import asyncio
import json
import platform
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import busway
from busway.broker.session import reason
from busway.errors import Code
from busway.gateway.monitoring import metrics
from tests.support import net


async def scraped(server, accept=""):
    body, _ = metrics.exposition(metrics.families(await server.figures()), accept)
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


async def eventually(holds):
    async def look():
        return bool(holds())

    await net.eventually(look)


def value(found, name, /, **labels):
    return found[name, tuple(sorted(labels.items()))]


async def test_traffic_is_counted():
    async with busway.serve() as server, server.connect() as bus:
        before = await scraped(server)
        async with bus.subscribe("a") as prices:
            await bus.publish("a", b"1")
            await bus.publish("nobody", b"1")
            await prices.recv()
            async with bus.serve("sum", lambda _: b"3"):
                await bus.request("sum", b"")
                after = await scraped(server)

    def grown(name):
        return value(after, name) - value(before, name)

    assert grown("busway_messages_received_total") == 3  # two publishes and a request
    assert grown("busway_messages_delivered_total") == 2
    assert grown("busway_messages_unroutable_total") == 1
    assert grown("busway_requests_total") == 1
    assert grown("busway_subscriptions") == 1
    assert grown("busway_services") == 1
    assert grown("busway_received_bytes_total") > 0
    assert grown("busway_delivered_bytes_total") > 0
    assert value(after, "busway_up") == 1
    assert (
        value(
            after,
            "busway_build_info",
            version=busway.__version__,
            core=busway.__version__,
            protocol="1",
            python=platform.python_version(),
        )
        == 1
    )
    assert value(after, "process_start_time_seconds") > 0


async def test_connections_by_transport_and_reason(tmp_path):
    address = f"unix:{tmp_path}/bus"
    async with busway.serve(address) as server, server.connect():
        async with busway.connect(address):
            found = await scraped(server)
            assert value(found, "busway_connections", transport="unix") == 1
            assert value(found, "busway_connections", transport="memory") == 1
        await eventually(lambda: server.overview()["ended"].get(("unix", "client")))
        found = await scraped(server)
        assert value(found, "busway_connections", transport="unix") == 0
        assert value(found, "busway_connections_opened_total", transport="unix") == 1
        assert value(found, "busway_connections_closed_total", transport="unix", reason="client") == 1


async def test_what_a_client_is_closed_for(tmp_path):
    path = f"{tmp_path}/bus"
    async with busway.serve(f"unix:{path}") as server:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        _, lost = await asyncio.open_unix_connection(path)
        lost.transport.abort()
        await eventually(lambda: len(server.overview()["ended"]) == 2)
        assert server.overview()["ended"] == {("unix", "protocol"): 1, ("unix", "lost"): 1}


async def test_what_the_broker_says_when_it_closes_a_connection(tmp_path):
    path = f"{tmp_path}/bus"
    async with busway.serve(f"unix:{path}", settings=busway.Settings(connections=1)) as server, server.connect():
        reader, writer = await asyncio.open_unix_connection(path)
        await reader.read()
        writer.close()
        await eventually(lambda: server.overview()["ended"])
        assert server.overview()["ended"] == {("unix", "too_many_connections"): 1}


def test_reasons_are_few():
    assert reason(Code.IDLE) == "idle"
    assert reason(123456) == "other"


async def test_streams_and_channels():
    async with busway.serve() as server, server.connect() as bus:
        await bus.create_stream("orders", topics=["orders/**"], store="memory")
        async with bus.channel("orders", "billing", window=2) as jobs:
            for _ in range(5):
                await bus.publish("orders/1", b"x", durable=True)
            await (await jobs.recv()).ack()
            await (await jobs.recv()).nack(delay=0)
            await jobs.recv()
            await eventually(lambda: server.overview()["streams"][1]["channels"][0]["redelivered"])
            found = await scraped(server)
    stream, channel = {"stream": "orders"}, {"stream": "orders", "channel": "billing"}
    assert value(found, "busway_streams") == 2
    assert value(found, "busway_stream_messages", **stream) == 5
    assert value(found, "busway_stream_first_offset", **stream) == 0
    assert value(found, "busway_stream_last_offset", **stream) == 4
    assert value(found, "busway_stream_bytes", **stream) > 0
    assert value(found, "busway_stream_stuck", **stream) == 0
    assert value(found, "busway_channel_lag_messages", **channel) == 4
    assert value(found, "busway_channel_in_flight_messages", **channel) == 2
    assert value(found, "busway_channel_consumers", **channel) == 1
    assert value(found, "busway_messages_redelivered_total", **channel) >= 1
    assert value(found, "busway_dead_letters_total", **channel) == 0
    assert value(found, "busway_stream_last_offset", stream="default") == -1


async def test_the_disk(tmp_path):
    settings = busway.Settings(min_free_disk=1)
    async with busway.serve(data=tmp_path, settings=settings) as server:
        found = await scraped(server)
    assert value(found, "busway_disk_free_bytes") > 1
    assert value(found, "busway_disk_floor_bytes") == 1
    assert value(found, "busway_disk_low") == value(found, "busway_disk_low_periods_total") == 0


async def test_names_of_many_streams_are_left_out(monkeypatch):
    monkeypatch.setattr(metrics, "LISTED", 2)
    async with busway.serve() as server, server.connect() as bus:
        for number in range(4):
            await bus.create_stream(f"s{number}", topics=[f"t{number}"], store="memory")
            async with bus.channel(f"s{number}", "c"):
                pass
        found = await scraped(server)
    assert value(found, "busway_streams") == 5
    assert value(found, "busway_channels") == 4
    assert sum(name == "busway_stream_messages" for name, _ in found) == 2
    assert sum(name == "busway_channel_lag_messages" for name, _ in found) == 2


async def test_kept_messages():
    async with busway.serve() as server, server.connect() as bus:
        await bus.post("a", b"1")
        await bus.pin("b", b"2")
        await bus.pin("c", b"3")
        found = await scraped(server)
    assert value(found, "busway_retained_messages", kind="post") == 1
    assert value(found, "busway_retained_messages", kind="pin") == 2
    assert value(found, "busway_retained_bytes") > 0


async def test_links_of_a_cluster():
    async with busway.serve("tcp://127.0.0.1:0", cluster="m", name="one") as one:
        async with busway.serve("tcp://127.0.0.1:0", cluster="m", name="two", servers=None) as alone:
            assert value(await scraped(alone), "busway_cluster_nodes") == 1
        place = busway.Cluster(name="m", servers=one.addresses)
        async with busway.serve("tcp://127.0.0.1:0", cluster=place, name='a "b\\c') as two:
            await eventually(lambda: one.stats()["links"])
            found = await scraped(one)
            peer = {"peer": two.guid, "name": 'a "b\\c'}  # escaped
            assert value(found, "busway_cluster_nodes") == 2
            assert value(found, "busway_link_up", **peer) == 1
            assert value(found, "busway_link_rtt_seconds", **peer) > 0
            assert value(found, "busway_interest_entries", **peer) == 0


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0"])
async def test_both_forms_of_the_text(accept):
    async with busway.serve() as server:
        body, kind = metrics.exposition(metrics.families(await server.figures()), accept)
    openmetrics = "openmetrics" in accept
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain")
    assert body.endswith(b"# EOF\n") == openmetrics
    assert b"busway_messages_received_total 0.0" in body


async def test_every_figure_of_the_broker_is_there():
    """A counter that is new in the broker is scraped, or left out on purpose."""
    elsewhere = {
        *("connections", "connections_opened", "connections_closed", "clients"),  # by transport
        *("outbox_bytes", "aside_bytes", "messages_dropped", "linked_dropped", "kept", "kept_bytes", "shared_pending"),
        *(
            "linked_received",
            "linked_received_bytes",
            "linked_delivered",
            "linked_delivered_bytes",
        ),  # part of the totals
        *("listeners", "watchers", "links", "interest"),
    }
    async with busway.serve() as server:
        assert set(server.stats()) == elsewhere | set(metrics._COUNTERS) | set(metrics._GAUGES)


async def test_dashboard_alerts_and_documentation_name_what_is_scraped(tmp_path):
    """Every name that they use is one that a server in a cluster gives, and every one that it gives is documented."""
    folder = Path(__file__).parents[3]
    async with busway.serve("tcp://127.0.0.1:0", cluster="m", data=tmp_path) as server:
        body, _ = metrics.exposition(metrics.families(await server.figures()))
    families = list(text_string_to_metric_families(body.decode()))
    given = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    given = {name for name in given if name.startswith("busway_")} | {"busway_event_loop_lag_seconds"}
    dashboard = (folder / "examples" / "monitoring" / "grafana.json").read_text()
    alerts = (folder / "examples" / "monitoring" / "alerts.yml").read_text()
    json.loads(dashboard)
    rules = yaml.safe_load(alerts)["groups"][0]["rules"]
    assert all({"alert", "expr", "annotations"} <= set(rule) for rule in rules)
    used = set(re.findall(r"\bbusway_\w+", dashboard + alerts))
    assert used <= given, used - given
    page = (folder / "docs" / "howto" / "monitoring.md").read_text()
    told = set(re.findall(r"`(busway_\w+)`", page))
    for row in page.splitlines():
        first = re.search(r"`(busway_(?:stream|channel))_\w+`", row)
        if first:
            told |= {f"{first[1]}{name}" for name in re.findall(r"`…(_\w+)`", row)}
    assert given - told == set()
    assert told - given == set()
