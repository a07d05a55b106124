"""The page of examples/browser in a real Chromium: it publishes, subscribes, calls services, signs, and shows errors."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

import busway
from busway.gateway.auth.signatures import verify
from tests.support.chromium import chromium, page

FOLDER = Path(__file__).parents[3]
PAGE = (FOLDER / "examples" / "browser" / "index.html").as_uri()
VECTORS = json.loads((FOLDER / "tests" / "vectors" / "zbus-signatures.json").read_text("utf-8"))
KEYS = """
[[key]]
apiKey = "browser"
secretKey = "s3cret"
publish = ["hello", "hello/**"]
subscribe = ["hello"]
"""

pytestmark = [pytest.mark.xdist_group("chromium"), pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as address:
        yield address


def serve(port=0, **more):
    """A server that talks to the page, whose origin is that of a file."""
    return busway.serve(http=busway.Http(address=f"127.0.0.1:{port}", cors=["null"], **more))


def at(server):
    return f"{PAGE}?url={quote(server.http.replace('http', 'ws'), safe='')}"


async def test_it_publishes_subscribes_and_calls(browser):
    async with serve() as server, server.connect() as bus:
        async with page(browser, at(server)) as tab:
            await tab.shows("#state", "connected")

            await tab.submit("sub")
            await tab.shows("#sub-result", "OK, SUB")
            async with bus.subscribe("hello") as hello:
                await tab.fill(pub_body='{"greeting": "zażółć"}')
                await tab.submit("pub")
                await tab.shows("#pub-result", "OK, PUB (mq=hello)")
                assert json.loads((await hello.recv(10)).payload) == {"greeting": "zażółć"}
            await tab.shows("#messages", '{"greeting":"zażółć"}')

            await bus.publish("hello", "from Python <b>&", durable=True)
            await tab.shows("#messages li", "from Python <b>&")

            async with bus.serve("example/plus", lambda message: sum(message.json())):
                await tab.submit("call")
                await tab.shows("#call-result", "3")
                await tab.until("document.querySelector('#call-result').className === 'good'")
            assert tab.errors == []


async def test_it_says_what_went_wrong(browser):
    async with serve() as server, page(browser, at(server)) as tab:
        await tab.shows("#state", "connected")
        await tab.fill(pub_mq="nobody/made/this")
        await tab.submit("pub")
        await tab.shows("#pub-result", "404: MQ(nobody/made/this) Not Found")
        await tab.fill(call_method="gone")
        await tab.submit("call")
        await tab.shows("#call-result", "404")
        await tab.fill(call_params="{}")
        await tab.submit("call")
        await tab.shows("#call-result", "the arguments are not a JSON list")
        assert await tab.run("document.querySelector('#call-result').className") == "bad"
        assert tab.errors == []


async def test_it_says_how_a_server_lets_it_in(browser):
    """A browser does not tell a page why it may not connect."""
    async with busway.serve(http="127.0.0.1:0") as server, page(browser, at(server)) as tab:
        await tab.shows("#sub-result", "--http-cors null")
        await tab.shows("#state", "offline")


async def test_it_comes_back(browser):
    async with serve() as server, page(browser, at(server)) as tab:
        await tab.shows("#state", "connected")
        await tab.submit("sub")
        await tab.shows("#sub-result", "OK, SUB")
        port = server.http.rpartition(":")[2]
        await server.stop()
        await tab.shows("#state", "offline")
        async with serve(port) as again, again.connect() as bus:
            await tab.shows("#state", "connected")
            async with asyncio.timeout(20):
                while not any(stream["channels"] for stream in again.overview()["streams"]):
                    await asyncio.sleep(0.01)
            await bus.publish("hello", "again", durable=True)
            await tab.shows("#messages", "again")


async def test_its_signatures_are_right(browser):
    async with page(browser, f"{PAGE}?url=ws://127.0.0.1:1/") as tab:
        for case in VECTORS["cases"]:
            if case["form"] == "flat":
                given = json.dumps([case["message"], VECTORS["apiKey"], VECTORS["secretKey"]])
                signed = await tab.run(f"sign(...{given})")
                assert signed["signature"].lower() == case["signature"]
        odd = {
            "b": [1, None, {"z": None, "a": 'zażółć/\u2028"\\\n'}],
            "a": None,
            "\uffff": 0.1,
            "\U00010000": 1e21,
            "e": {},
        }
        signed = await tab.run(f"sign(...{json.dumps([odd, 'k', 's'])}).then(JSON.stringify)")
        assert verify(json.loads(signed), "s", raw=signed)


async def test_a_server_that_wants_keys(browser, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    async with serve(keys=keys) as server, page(browser, at(server)) as tab:
        await tab.shows("#state", "connected")
        await tab.submit("sub")
        await tab.shows("#sub-result", "403: missing apiKey in request")
        await tab.fill(key_apiKey="browser", key_secretKey="wrong")
        await tab.submit("sub")
        await tab.shows("#sub-result", "403: signature unmatched")
        await tab.fill(key_secretKey="s3cret")
        await tab.submit("sub")
        await tab.shows("#sub-result", "OK, SUB")
        await tab.submit("pub")
        await tab.shows("#pub-result", "OK, PUB")
        await tab.fill(sub_mq="payments")
        await tab.submit("sub")
        await tab.shows("#sub-result", "403: ")
