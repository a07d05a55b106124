"""Health routes `/healthz`, `/readyz` and `/metrics`: report whether the process works, and serve its metrics.

`http/routes.py` adds them to the JSON door. `/healthz` never depends on other nodes: otherwise one failed node could
make an orchestrator restart all others. A driver.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiohttp import web
from prometheus_client.core import Metric

from busway.broker.server import Server
from busway.common.checks import check_seconds
from busway.common.durations import Duration
from busway.errors import BusError
from busway.gateway.monitoring.metrics import exposition, families, gauge

log = logging.getLogger("busway.gateway")

LAG: Final = 5.0
"""Seconds that one turn of the event loop may take in a healthy process."""
_TURNS: Final = 3

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(
    server: Server, *, lag: Duration = LAG, more: Callable[[], Iterable[Metric]] | None = None
) -> list[web.RouteDef]:
    """The three routes of a server.

    `lag` is the longest healthy turn of the loop; `more` returns further families for `/metrics`.
    """
    lag = check_seconds("lag", lag, zero=False)

    async def healthz(_: web.Request) -> web.Response:
        slowest = await loop_lag()
        answer = {"lag_seconds": round(slowest, 6)}
        if slowest > lag:
            return _answer(answer, [f"a turn of the event loop took {slowest:.3f} s; the limit is {lag:g} s"])
        return _answer(answer, [])

    async def readyz(_: web.Request) -> web.Response:
        reasons, notes = readiness(server)
        return _answer({"notes": notes} if notes else {}, reasons)

    async def metrics(request: web.Request) -> web.Response:
        try:
            found = [*families(await server.figures()), *(more() if more is not None else ())]
        except BusError as error:  # the broker has stopped, or has not started
            log.debug("the broker has no figures: %s", error)
            found = [gauge("busway_up", "1: the broker answers.", 0)]
        text = "Duration of the slowest of a few turns of the event loop during the scrape."
        found.append(gauge("busway_event_loop_lag_seconds", text, await loop_lag()))
        body, kind = exposition(found, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]


async def loop_lag() -> float:
    """Seconds of the slowest of a few turns of the running loop; timers run late by that much."""
    loop = asyncio.get_running_loop()
    slowest = 0.0
    for _ in range(_TURNS):
        began = loop.time()
        await asyncio.sleep(0)
        slowest = max(slowest, loop.time() - began)
    return slowest


def readiness(server: Server) -> tuple[list[str], list[str]]:
    """Reasons why the server is not ready, and notes about problems of single streams, which do not count as such."""
    match server.state:
        case "new":
            return ["the broker has not started: listeners are not bound, streams are not open"], []
        case "stopping":
            return ["the broker is draining"], []
        case "stopped":
            return ["the broker has stopped"], []
        case _:
            figures = server.overview()
    notes = [f"stream {name!r} could not be opened: {reason}" for name, reason in figures["damaged"].items()]
    notes += [f"stream {stream['name']!r}: {stream['stuck']}" for stream in figures["streams"] if stream["stuck"]]
    return [], notes


def _answer(body: dict[str, Any], reasons: list[str]) -> web.Response:
    content = {"status": "failing" if reasons else "ok", **({"reasons": reasons} if reasons else {}), **body}
    return web.json_response(content, status=503 if reasons else 200, headers={"Cache-Control": "no-store"})
