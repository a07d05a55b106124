"""Pages of other sites, and names that others have point at the door: none of them reads or changes anything."""

from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

import busway
from busway.gateway.json.config import Http
from tests.support import door as doors
from tests.support.chromium import chromium, page

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"}
CHANGES = (
    "cmd=pub&mq=Q&body=x",
    "cmd=sub&mq=Q&channel=C",
    "cmd=take&mq=Q&channel=C",
    "cmd=create&mq=R",
    "cmd=remove&mq=Q",
    "cmd=route&recver=x",
    "cmd=bind&mq=Q",
)


async def status(door, path, **headers):
    async with door.session.get(door.url + path, headers=headers) as response:
        return response.status


# Hosts.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:15555", "192.168.1.5", "[", "a@localhost", "localhost.evil"]
)
async def test_a_request_for_another_host_is_refused(door, host):
    """Whatever its path, and whether a browser sends it or not."""
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    for path in (
        "/?cmd=ping",
        "/?cmd=remove&mq=Q",
        "/m/f",
        "/metrics",
        "/services",
        "/healthz",
        "/openapi.json",
        "/events/**",
    ):
        for more in ({}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{host}"}):
            async with door.session.get(door.url + path, headers={"Host": host, **more}) as response:
                assert response.status == 421, path
                assert "--http-host" in (await response.json())["body"]
    with pytest.raises(aiohttp.WSServerHandshakeError, match="421"):
        await door.session.ws_connect(door.url, headers={"Host": host})
    assert (await door.http.get("/?cmd=query&mq=Q"))[0] == 200


async def test_hosts_that_are_this_one():
    names = ["localhost:1", "LOCALHOST", "localhost.", "app.localhost", "127.0.0.1", "127.1.2.3:9", "[::1]:15555", ""]
    async with doors.opened(hosts=["Bus.example"], cors=["https://app.example:8443"]) as door:
        for name in [*names, "bus.example", "bus.example:80", "app.example:8443"]:
            assert await status(door, "/?cmd=ping", Host=name) == 200, name
        assert await status(door, "/?cmd=ping", Host="app.example") == 421
    async with doors.opened(hosts=["*"]) as door:
        assert await status(door, "/?cmd=ping", Host="any.example") == 200


async def test_a_server_at_other_addresses_answers_for_numbers():
    """No page can have a number point elsewhere. Names have to be listed."""
    async with (
        busway.serve(http=Http(address="0.0.0.0:0", hosts=["bus.example"]), insecure=True) as server,
        aiohttp.ClientSession() as session,
    ):
        url = server.http.replace("0.0.0.0", "127.0.0.1") + "/?cmd=ping"
        for host, wanted in (
            ("192.168.1.5:15555", 200),
            ("[fe80::1]", 200),
            ("bus.example", 200),
            ("evil.example", 421),
        ):
            async with session.get(url, headers={"Host": host}) as response:
                assert response.status == wanted, host


@pytest.mark.parametrize("host", ["http://bus.example", "bus.example:80", "a/b", "", "a b"])
def test_what_is_no_name_of_a_host(host):
    with pytest.raises(ValueError, match="not the name of a host"):
        Http(hosts=[host])
    with pytest.raises(TypeError, match="list of names"):
        Http(hosts="bus.example")


# Browsers that don't say which page asks.


async def test_a_browser_that_does_not_say_where_from_changes_nothing(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    own = {"Referer": door.url + "/page"}
    for asked in CHANGES:
        for more in ({}, {"Referer": "http://evil.example/"}):
            assert await status(door, "/?" + asked, **BROWSER, **more) == 403, asked
            async with door.session.head(door.url + "/?" + asked, headers=BROWSER | more) as response:
                assert response.status == 403, asked
    assert (await door.http.get("/?cmd=query&mq=Q"))[1]["body"]["size"] == 0
    assert await status(door, "/?cmd=query&mq=Q", **BROWSER) == 200
    for proof in (own, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": door.url}):
        assert await status(door, "/?cmd=pub&mq=Q&body=x", **BROWSER, **proof) == 200, proof
    async with door.session.post(door.url, json={"cmd": "pub", "mq": "Q", "body": 1}, headers=BROWSER) as response:
        assert response.status == 200
    assert await status(door, "/?cmd=remove&mq=Q") == 200, "a client that is no browser"


async def test_links_of_other_sites_call_nothing(door):
    async with door.bus.serve("example/f", lambda message: "done"):
        assert await status(door, "/example/f", **BROWSER) == 200
        assert await status(door, "/example/f", **BROWSER, Referer="http://evil.example/") == 403
        assert await status(door, "/example/f", **BROWSER, Referer=door.url + "/") == 200


# A real browser.

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def browser():
    with chromium("--host-resolver-rules=MAP *.test 127.0.0.1") as address:
        yield address


@asynccontextmanager
async def site(html):
    """A page of another site; its address."""

    async def handle(request):
        return web.Response(text=html, content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", handle)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        listening = web.TCPSite(runner, "127.0.0.1", 0)
        await listening.start()
        yield f"http://evil.test:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


TRIES = """
(async () => {
  const got = [];
  for (const path of ["/?cmd=query&mq=Q", "/?cmd=pub&mq=Q&body=x", "/metrics", "/services", "/?cmd=take&mq=Q&channel=C"])
    got.push((await fetch(path)).status);
  got.push((await fetch("/", {method: "POST", body: '{"cmd":"remove","mq":"Q"}'})).status);
  got.push(await new Promise(done => {
    const socket = new WebSocket(location.origin.replace("http", "ws"));
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
  }));
  return got;
})()
"""


@pytest.mark.xdist_group("chromium")
async def test_a_name_that_was_made_to_point_here(browser, door):
    """For the browser it is one origin, so it sends no sign that this is a page of somebody else."""
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    async with page(browser, door.url.replace("127.0.0.1", "evil.test") + "/healthz") as tab:
        assert await tab.run(TRIES) == [421] * 6 + ["refused"]
    assert (await door.http.get("/?cmd=query&mq=Q"))[1]["body"]["size"] == 0


@pytest.mark.xdist_group("chromium")
@pytest.mark.parametrize("name", ["127.0.0.1", "bus.test"])
@pytest.mark.parametrize("policy", ["", "referrerpolicy=no-referrer"], ids=["referrer", "none"])
async def test_an_image_on_a_page_of_another_site(browser, name, policy):
    """For a name other than localhost over plain HTTP the browser says nothing of the page."""
    async with doors.opened(hosts=["bus.test"]) as door:
        await door.http.get("/?cmd=create&mq=Q&channel=C")
        url = door.url.replace("127.0.0.1", name)
        images = "".join(
            f'<img {policy} src="{url}/?{asked}" onerror="tried += 1" onload="tried += 1">' for asked in CHANGES
        )
        async with site(f"<!doctype html><script>tried = 0</script>{images}") as evil, page(browser, evil) as tab:
            await tab.until(f"tried === {len(CHANGES)}")
        status, found = await door.http.get("/?cmd=query&mq=Q")
        assert (status, found["body"]["size"]) == (200, 0)
        assert (await door.http.get("/?cmd=query&mq=R"))[0] == 404
        async with page(browser, f"{url}/?cmd=query&mq=Q") as tab:  # its own page may
            posted = """fetch("/", {method: "POST", body: '{"cmd":"pub","mq":"Q","body":1}'}).then(r => r.status)"""
            assert await tab.run(posted) == 200
            assert await tab.run('fetch("/?cmd=pub&mq=Q&body=2").then(r => r.status)') == 200
