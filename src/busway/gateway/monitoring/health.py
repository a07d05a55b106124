"""`/healthz`, `/readyz` and `/metrics`: whether the process lives, whether it serves, and what it counts.

A driver. Whether it lives never depends on other nodes, or one that is down would have all others started anew.
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
"""Seconds that the event loop may take for a turn before the process is called unhealthy."""
_TURNS: Final = 3

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(
    server: Server, *, lag: Duration = LAG, more: Callable[[], Iterable[Metric]] | None = None
) -> list[web.RouteDef]:
    """The three routes of a server. `lag`: a slower turn of the loop is unhealthy; `more`: further families to be scraped."""
    lag = check_seconds("lag", lag, zero=False)

    async def healthz(_: web.Request) -> web.Response:
        slowest = await loop_lag()
        answer = {"lag_seconds": round(slowest, 6)}
        if slowest > lag:
            return _answer(answer, [f"the event loop took {slowest:.3f} s for a turn, {lag:g} s are the limit"])
        return _answer(answer, [])

    async def readyz(_: web.Request) -> web.Response:
        reasons, notes = readiness(server)
        return _answer({"notes": notes} if notes else {}, reasons)

    async def metrics(request: web.Request) -> web.Response:
        try:
            found = [*families(await server.figures()), *(more() if more is not None else ())]
        except BusError as error:  # it has stopped, or has not begun
            log.debug("no figures: %s", error)
            found = [gauge("busway_up", "1: the broker answers.", 0)]
        text = "The slowest of a few turns of the event loop, now."
        found.append(gauge("busway_event_loop_lag_seconds", text, await loop_lag()))
        body, kind = exposition(found, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]


async def loop_lag() -> float:
    """How long the slowest of a few turns of the running loop took: so late is everything that is due."""
    loop = asyncio.get_running_loop()
    slowest = 0.0
    for _ in range(_TURNS):
        began = loop.time()
        await asyncio.sleep(0)
        slowest = max(slowest, loop.time() - began)
    return slowest


def readiness(server: Server) -> tuple[list[str], list[str]]:
    """Why clients should not be sent here, and what else is wrong: a stream less is no reason to turn all away."""
    match server.state:
        case "new":
            return ["the broker has not started: listeners are not bound, streams are not open"], []
        case "stopping":
            return ["the broker drains"], []
        case "stopped":
            return ["the broker has stopped"], []
        case _:
            figures = server.overview()
    notes = [f"stream {name!r} could not be opened: {why}" for name, why in figures["damaged"].items()]
    notes += [f"stream {one['name']!r}: {one['stuck']}" for one in figures["streams"] if one["stuck"]]
    return [], notes


def _answer(body: dict[str, Any], reasons: list[str]) -> web.Response:
    said = {"status": "failing" if reasons else "ok", **({"reasons": reasons} if reasons else {}), **body}
    return web.json_response(said, status=503 if reasons else 200, headers={"Cache-Control": "no-store"})
