"""Files of the console: who gets them at which address, with which headers, and how large they are."""

import asyncio
import posixpath
import re

import aiohttp
import pytest

import busway
from busway.gateway.console.assets import MODULES, Assets, Incomplete

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "User-Agent": "Mozilla/5.0"}
LIMIT = 100_000


@pytest.fixture
async def server():
    async with busway.serve(http="127.0.0.1:0") as made:
        yield made


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(server.http) as session:
        yield session


async def test_a_browser_gets_the_page(http):
    async with http.get("/", headers=BROWSER) as answer:
        text = await answer.text()
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert answer.headers["Vary"] == "Accept, Accept-Encoding"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    async with http.get("/console", headers=BROWSER) as answer:
        assert await answer.text() == text


@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}, {"Accept": "application/json"}])
async def test_programs_get_what_they_got_before(http, headers):
    async with http.get("/", headers=headers) as answer:
        assert answer.content_type == "text/plain"
        assert "curl" in await answer.text()
    async with http.get("/?cmd=ping", headers=BROWSER) as answer:
        assert (await answer.json(content_type=None))["body"] == "OK, PING"
    async with http.get("/", headers=BROWSER | {"cmd": "ping"}) as answer:
        assert answer.content_type == "text/plain"


async def test_a_service_that_is_bound_to_the_root_comes_before_the_console(server, http):
    async with http.ws_connect("/") as service:
        await service.send_json({"cmd": "create", "mq": "site", "channel": "site", "id": "1"})
        await service.receive_json(timeout=10)
        await service.send_json({"cmd": "sub", "mq": "site", "channel": "site", "id": "2"})
        await service.receive_json(timeout=10)
        await service.send_json({"cmd": "bind", "mq": "site", "body": [{"urlPath": "/", "url": "/"}], "id": "3"})
        await service.receive_json(timeout=10)
        getting = asyncio.create_task(http.get("/", headers=BROWSER))
        call = await service.receive_json(timeout=10)
        answer = {"cmd": "route", "recver": call["sender"], "id": call["id"], "status": 200, "body": "<h1>mine</h1>"}
        await service.send_json(answer)
        async with await getting as page:
            assert await page.text() == "<h1>mine</h1>"


async def test_a_service_of_the_bus_below_console_can_still_be_called(server, http):
    async with server.connect() as bus, bus.serve("console/add", lambda message: sum(message.json())):
        async with http.post("/console/add", json=[1, 2]) as answer:
            assert await answer.text() == "3"


async def test_a_link_of_another_site_may_open_the_page_but_not_its_files_or_its_socket(http):
    foreign = {**BROWSER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with http.get("/", headers=foreign) as answer:
        assert answer.status == 200
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        (script,) = re.findall(r'<script type="module" src="([^"]+)"', await answer.text())
    async with http.get(script, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
        assert answer.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await http.ws_connect("/console/socket", headers={"Origin": "https://evil.example"})
    assert refused.value.status == 403


async def test_another_host_gets_nothing(http):
    async with http.get("/", headers={**BROWSER, "Host": "evil.example"}) as answer:
        assert answer.status == 421


async def test_all_files_that_the_page_names_are_there_and_stay_in_the_cache(http):
    async with http.get("/", headers=BROWSER) as answer:
        text = await answer.text()
    paths = set(re.findall(r'(?:src|href)="(/[^"]+)"', text)) | set(re.findall(r'": "(/console/[^"]+)"', text))
    assert len(paths) > 40
    for path in paths:
        async with http.get(path) as answer:
            assert answer.status == 200, path
            assert "immutable" in answer.headers["Cache-Control"]
            body = await answer.text()
        if path.endswith(".js"):
            assert answer.content_type == "text/javascript"
            for name in re.findall(r'from "(\.[^"]+)"', body):
                assert posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) in paths, (path, name)


async def test_an_old_version_is_not_found(http):
    async with http.get("/console/0123456789abcdef/main.js") as answer:
        assert answer.status == 404


def test_the_files_are_small():
    assert Assets.load().compressed < LIMIT


def test_without_the_scripts_of_others_it_says_which_are_missing():
    with pytest.raises(Incomplete, match=re.escape("preact.js")):
        Assets(
            {"index.html": b""}, {"uplot.css": b"", **{name: b"" for name in MODULES.values() if name != "preact.js"}}
        )


def test_comments_are_left_out_and_patterns_stay():
    script = b'// @ts-check\n/** A module. */\n\n/**\n * @param {string} a\n */\nconst b = /** @type {any} */ (`${a}/**`);\nconst c = "**";\n'
    vendor = {"uplot.css": b"", **dict.fromkeys(MODULES.values(), b"")}
    made = Assets({"index.html": b"", "a.js": script}, vendor)
    assert made.files["a.js"].body == b'\nconst b = (`${a}/**`);\nconst c = "**";\n'
