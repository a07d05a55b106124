"""Health over HTTP: alive, ready, and why not."""

import asyncio
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import busway
from busway.gateway.monitoring import health
from busway.gateway.monitoring.metrics import counter


def client(server, **more):
    app = web.Application()
    app.add_routes(health.routes(server, **more))
    return TestClient(TestServer(app))


async def get(http, path):
    async with http.get(path) as response:
        return response.status, await response.json()


async def test_alive_and_ready():
    async with busway.serve() as server, client(server) as http:
        status, body = await get(http, "/healthz")
        assert (status, body["status"]) == (200, "ok")
        assert 0 <= body["lag_seconds"] < 5
        assert await get(http, "/readyz") == (200, {"status": "ok"})


async def test_alive_but_not_ready_before_the_start_while_it_drains_and_after():
    server = busway.serve()
    async with client(server) as http:
        status, body = await get(http, "/readyz")
        assert status == 503
        assert "not started" in body["reasons"][0]
        await server.start()
        assert (await get(http, "/readyz"))[0] == 200
        async with server.connect() as bus, bus.subscribe("a"):
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0)
            assert await get(http, "/readyz") == (503, {"status": "failing", "reasons": ["the broker is draining"]})
            await stopping
        assert await get(http, "/readyz") == (503, {"status": "failing", "reasons": ["the broker has stopped"]})
        assert (await get(http, "/healthz"))[0] == 200


async def test_a_loop_that_lags_is_not_healthy():
    async with busway.serve() as server, client(server, lag=0.05) as http:
        async with http.get("/readyz"):
            pass
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def block():
            time.sleep(0.06)
            if not stop.is_set():
                loop.call_soon(block)

        loop.call_soon(block)
        try:
            status, body = await get(http, "/healthz")
        finally:
            stop.set()
        assert status == 503
        assert "the event loop took" in body["reasons"][0]


async def test_a_stream_that_is_damaged_is_noted(tmp_path):
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("orders", topics=["orders"], store="disk")
    for file in tmp_path.glob("streams/orders/stream*"):
        file.write_bytes(b"garbage")
    async with busway.serve(data=tmp_path) as server, client(server) as http:
        status, body = await get(http, "/readyz")
        assert status == 200
        assert "stream 'orders' could not be opened" in body["notes"][0]


async def test_metrics():
    more = lambda: [counter("busway_http_refused", "Refused requests.", 7)]  # noqa: E731
    async with busway.serve() as server, client(server, more=more) as http:
        async with http.get("/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            text = await response.text()
        assert "busway_http_refused_total 7.0" in text
        assert "busway_up 1.0" in text
        assert "busway_event_loop_lag_seconds " in text
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with http.get("/metrics", headers=accept) as response:
            assert response.content_type == "application/openmetrics-text"


async def test_metrics_of_a_server_that_is_not_there():
    async with client(busway.serve()) as http, http.get("/metrics") as response:
        assert "busway_up 0.0" in await response.text()


def test_a_limit_that_is_none():
    with pytest.raises(ValueError, match="lag must be above zero"):
        health.routes(busway.serve(), lag=0)
