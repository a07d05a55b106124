"""Every screen of the console and every action on it, in Chromium against a real broker with data."""

import asyncio
import json
import re

import pytest
import pytest_asyncio
from playwright.async_api import expect

import busway
from tests.support import console
from tests.support.console_data import FAILING, ORDERS, busy

pytestmark = [pytest.mark.xdist_group("chromium"), pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

SCREENS = (
    "#/overview",
    "#/topics?path=config/limits",
    "#/topics?path=price/eth/eur",
    "#/streams",
    "#/streams/orders",
    "#/channels",
    "#/channels/orders/billing",
    "#/services?topic=pricing/quote",
    "#/clients",
    "#/cluster",
    "#/users",
    "#/publish?topic=a/b",
)


@pytest_asyncio.fixture(loop_scope="module")
async def server():
    async with busway.serve(name="krakow", http="127.0.0.1:0") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def clients(server):
    async with busy(server) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser, server, clients):
    async with console.tab(browser, server.http) as made:
        yield made


async def until(condition):
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.05)


def row(page, text):
    return page.get_by_role("row").filter(has_text=text).first


async def confirm(page, action, name=None):
    """Agree in the dialog, after writing the name that it asks for."""
    dialog = page.locator("dialog.dialog")
    if name is not None:
        await expect(dialog.get_by_role("button", name=action)).to_be_disabled()
        await dialog.get_by_role("textbox").fill("something else")
        await expect(dialog.get_by_role("button", name=action)).to_be_disabled()
        await dialog.get_by_role("textbox").fill(name)
    await dialog.get_by_role("button", name=action).click()
    await expect(dialog).to_have_count(0)


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_every_screen_can_be_used_by_everybody(browser, server, clients, look, tmp_path):
    """No serious findings of axe, and nothing is wider than the window."""
    size = console.NARROW if look == "narrow" else console.WIDE
    async with console.tab(browser, server.http) as tab:
        await tab.page.emulate_media(color_scheme="dark" if look == "dark" else "light", reduced_motion="reduce")
        await tab.page.set_viewport_size(size)
        for screen in SCREENS:
            await tab.go(screen)
            await expect(tab.page.locator("h1")).to_be_visible()
            await expect(tab.page.locator("main")).not_to_contain_text("Loading…")
            assert await tab.findings() == [], screen
            assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), screen


async def test_the_overview_says_what_is_wrong(tab):
    page = tab.page
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await tab.shows(f"Channel orders/shipping has {ORDERS} messages to deliver and no consumer.")
    await tab.shows(f"Channel orders/billing has moved {ORDERS // FAILING} messages to its dead letters.")
    await expect(page.locator(".figure", has_text="Messages in").locator(".figure-value")).to_have_text(
        re.compile(r"\d+/s")
    )
    await expect(page.locator(".u-wrap canvas")).to_have_count(6)
    await page.get_by_role("link", name="has moved").click()
    await expect(page.get_by_role("heading", name="orders/billing", level=1)).to_be_visible()


async def test_nothing_is_wrong_with_an_idle_broker(browser):
    async with busway.serve(http="127.0.0.1:0") as idle, console.tab(browser, idle.http) as tab:
        await tab.shows("Nothing is wrong.")


async def test_topics_have_rates_users_and_retained_values(tab):
    page = tab.page
    await tab.go("#/topics")
    tree = page.locator(".tree").first
    await expect(tree.locator(".branch", has_text="price")).to_contain_text("/s")
    await tree.get_by_role("button", name="Open price").click()
    await tree.get_by_role("button", name="Open price/eth").click()
    await tree.get_by_role("link", name="eur").click()
    await expect(page.get_by_role("heading", name="1 publisher")).to_be_visible()
    await expect(row(page, "feed")).to_be_visible()
    await expect(row(page, "risk")).to_be_visible()
    await page.get_by_role("searchbox", name="Go to a topic").fill("config/limits")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Retained value")).to_be_visible()
    await tab.shows('"max_order": 1000')


async def test_a_tail_follows_a_pattern_with_rules_and_pauses(tab):
    page = tab.page
    await tab.go("#/topics?path=price/eth/eur")
    card = page.locator(".card", has=page.get_by_role("heading", name="Live tail"))
    await expect(card.get_by_role("row").nth(1)).to_contain_text("price/eth/eur")
    await card.get_by_label("Topic pattern").fill("price/**")
    await card.get_by_label("Field rules").fill("venue=krk, n=expr:value % 2 == 1")
    await card.get_by_label("Payload contains").fill("bid")
    await card.get_by_role("button", name="Apply").click()
    await expect(card.get_by_role("row").nth(1)).to_contain_text("price/btc/eur")
    await expect(card.get_by_role("row").filter(has_text="price/eth/eur")).to_have_count(0)
    await card.get_by_role("button", name="Pause").click()
    shown = await card.get_by_role("row").nth(1).inner_text()
    await page.wait_for_timeout(700)
    assert await card.get_by_role("row").nth(1).inner_text() == shown
    await card.get_by_role("button", name="Continue").click()
    await expect(card.get_by_role("row").nth(1)).not_to_have_text(shown)
    await card.get_by_label("Field rules").fill("n=expr:(")
    await card.get_by_role("button", name="Apply").click()
    await expect(card.get_by_role("alert")).to_contain_text("rule")


async def test_copy_as_is_right(tab, server):
    page = tab.page
    await tab.go("#/topics?path=price/eth/eur")
    card = page.locator(".card", has=page.get_by_role("heading", name="Live tail"))
    await card.get_by_label("Field rules").fill("venue=krk")
    await card.get_by_role("button", name="Apply").click()
    await card.get_by_text("Copy as…").click()
    text = await card.locator(".copy-item", has_text="Python").locator("pre").inner_text()
    assert 'bus.subscribe("price/eth/eur", where={"venue": "krk"})' in text
    compile(text.replace("async with", "with").replace("async for", "for"), "copied", "exec")
    assert "busway sub" in await card.locator(".copy-item", has_text="CLI").locator("pre").inner_text()


async def test_a_message_opens_with_decoders(tab):
    page = tab.page
    await tab.go("#/streams/audit")
    await row(page, "audit/login").click()
    drawer = page.locator("dialog.drawer")
    await expect(drawer.locator(".payload-text")).to_contain_text('"user": "anna"')
    await drawer.get_by_role("button", name="Hex").click()
    await expect(drawer.locator(".payload-text")).to_contain_text("00000000  82 a4")
    await drawer.get_by_role("button", name="JSON").click()
    await expect(drawer.locator(".payload-text")).to_contain_text("This payload is not json")
    assert await tab.findings() == []
    await page.keyboard.press("Escape")
    await expect(drawer).to_have_count(0)
    await row(page, "audit/raw").click()
    await expect(drawer.locator(".payload-text")).to_contain_text("ff fe 00 01")


async def test_stored_messages_by_page_field_text_and_time(tab):
    page = tab.page
    await tab.go("#/streams/orders")
    await expect(row(page, '"id": 300')).to_be_visible()
    await page.get_by_role("button", name="Older").click()
    await expect(row(page, '"id": 250')).to_be_visible()
    await page.get_by_role("button", name="Newer").click()
    await expect(row(page, '"id": 300')).to_be_visible()
    form = page.locator(".browse-form")
    await form.get_by_label("Field rules").fill("number=expr:value < 3")
    await form.get_by_role("button", name="Show").click()
    await expect(row(page, '"id": 2,')).to_be_visible()
    await expect(row(page, '"id": 300')).to_have_count(0)
    await form.get_by_label("Field rules").fill("")
    await form.get_by_label("Payload contains").fill('"id": 123,')
    await form.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("row").filter(has_text='"id": ')).to_have_count(1)
    await form.get_by_label("Payload contains").fill("")
    await form.get_by_label("From").select_option("offset")
    await form.get_by_role("spinbutton", name="Offset").fill("10")
    await form.get_by_role("button", name="Show").click()
    await expect(row(page, '"id": 11,')).to_be_visible()
    await form.get_by_label("From").select_option("time")
    await form.get_by_role("textbox", name="Time").fill("2020-01-01T00:00:00")
    await form.get_by_role("button", name="Show").click()
    await expect(row(page, '"id": 1,')).to_be_visible()


async def test_a_range_is_replayed_to_a_topic(tab, clients):
    page = tab.page
    await tab.go("#/streams/orders")
    async with clients["risk"].subscribe("again") as again:
        await page.get_by_role("button", name="Replay a range…").click()
        drawer = page.locator("dialog.drawer")
        await drawer.get_by_label("First offset").fill("5")
        await drawer.get_by_label("Before offset").fill("8")
        await drawer.get_by_label("To topic").fill("again")
        assert await tab.findings() == []
        await drawer.get_by_role("button", name="Replay").click()
        await expect(page.locator(".report")).to_contain_text("3 messages published again")
        assert [json.loads((await again.recv(5)).payload)["id"] for _ in range(3)] == [6, 7, 8]


async def test_a_channel_is_paused_and_resumed(tab, clients):
    page = tab.page
    await tab.go("#/channels/orders/billing")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".explained")).to_contain_text("The channel is paused")
    assert (await clients["feed"].channel_info("orders", "billing")).paused
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".report").last).to_contain_text("is delivering again")
    assert not (await clients["feed"].channel_info("orders", "billing")).paused


async def test_a_channel_is_moved_after_its_name_was_written(tab, clients):
    page = tab.page
    await tab.go("#/channels/orders/shipping")
    await page.get_by_role("button", name="Seek…").click()
    drawer = page.locator("dialog.drawer")
    await drawer.get_by_label("Continue at").select_option("offset")
    await drawer.get_by_role("spinbutton", name="Offset").fill("290")
    assert await tab.findings() == []
    await drawer.get_by_role("button", name="Move…").click()
    await confirm(page, "Move", "shipping")
    await expect(page.locator(".report")).to_contain_text("continues at offset 290")
    assert (await clients["feed"].channel_info("orders", "shipping")).lag == 10
    await page.get_by_role("button", name="Seek…").click()
    await drawer.get_by_label("Continue at").select_option("time")
    await drawer.get_by_role("textbox", name="Time").fill("2020-01-01T00:00:00")
    await drawer.get_by_role("button", name="Move…").click()
    await confirm(page, "Move", "shipping")
    await until(lambda: _lag_is(clients, ORDERS))


async def _lag_is(clients, lag):
    return (await clients["feed"].channel_info("orders", "shipping")).lag == lag


async def test_dead_letters_are_read_and_sent_back(tab, clients):
    page = tab.page
    await tab.go("#/channels/orders/billing")
    card = page.locator(".card", has=page.get_by_role("heading", name="Dead letters"))
    await row(card, "no price for order 291").click()
    drawer = page.locator("dialog.drawer")
    await expect(drawer).to_contain_text("ValueError")
    await expect(drawer.locator(".payload-text").last).to_contain_text('"id": 291')
    assert await tab.findings() == []
    await drawer.get_by_role("button", name="Redrive").click()
    await expect(page.locator(".report")).to_contain_text("1 dead letter sent back")
    await card.get_by_role("button", name="Redrive all…").click()
    await confirm(page, "Redrive", "billing")
    await expect(page.locator(".report").last).to_contain_text("sent back")
    await until(lambda: _died(clients, 2 * (ORDERS // FAILING)))


async def _died(clients, count):
    return (await clients["feed"].channel_info("orders", "billing")).dead >= count


async def test_a_channel_is_removed_after_its_name_was_written(tab, clients):
    page = tab.page
    await tab.go("#/channels")
    await page.get_by_role("link", name="orders/shipping").click()
    await page.get_by_role("button", name="Remove…").click()
    await page.locator("dialog.dialog").get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Remove…").click()
    await confirm(page, "Remove", "shipping")
    await expect(page.get_by_role("heading", name="Channels", level=1)).to_be_visible()
    assert [info.name for info in await clients["feed"].channels("orders")] == ["billing"]


async def test_a_service_is_tried(tab):
    page = tab.page
    await tab.go("#/services")
    await row(page, "pricing/quote").click()
    await expect(page.get_by_role("heading", name="2 providers")).to_be_visible()
    await page.get_by_label("Payload").fill('{"symbol": "eth"}')
    await page.get_by_role("button", name="Send the request").click()
    await expect(page.locator(".payload-text")).to_contain_text('"price": 42')
    await page.get_by_label("Payload").fill("no JSON")
    await page.get_by_role("button", name="Send the request").click()
    await expect(page.get_by_role("alert")).to_be_visible()


async def test_a_client_is_disconnected_after_its_name_was_written(tab, server):
    page = tab.page
    async with server.connect(name="intruder", reconnect=None) as intruder:
        await tab.go("#/clients")
        await page.get_by_role("searchbox").fill("intruder")
        await expect(page.get_by_role("row")).to_have_count(2)
        await page.get_by_role("button", name="Disconnect intruder").click()
        assert await tab.findings() == []
        await confirm(page, "Disconnect", "intruder")
        await expect(page.locator(".report")).to_contain_text("intruder is disconnected")
        await expect(page.locator("main")).to_contain_text("No client matches.")
        assert intruder.state == "closed"


async def test_a_message_is_published_stored_and_retained(tab, clients):
    page = tab.page
    await tab.go("#/publish")
    async with clients["risk"].subscribe("hello/**") as hello:
        await page.get_by_label("Topic").fill("hello/world")
        await page.get_by_label("Payload").fill("<b>żółć</b>")
        await page.get_by_label("Fields").fill("venue=krk\nsize=3")
        await page.locator("form").get_by_role("button", name="Publish", exact=True).last.click()
        await expect(page.locator(".report")).to_contain_text("delivered to 1 connection")
        message = await hello.recv(5)
        assert (message.text, message.fields) == ("<b>żółć</b>", {"venue": "krk", "size": 3})
    await page.get_by_role("button", name="Durable").first.click()
    await page.get_by_label("Topic").fill("orders/eu")
    await page.get_by_label("Deliver after").fill("0")
    await page.locator("form .actions").get_by_role("button", name="Durable").click()
    await page.get_by_role("link", name=f"Stored in orders at offset {ORDERS}").click()
    await expect(row(page, "żółć")).to_be_visible()
    await tab.go("#/publish?topic=config/new&text=1")
    await page.get_by_role("button", name="Retained").first.click()
    await page.locator("form .actions").get_by_role("button", name="Retained").click()
    await expect(page.locator(".report").last).to_contain_text("retains the message")
    assert [message.payload for message in await clients["feed"].kept("config/new")] == [b"1"]


async def test_users_and_login_with_keys(browser, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\napiKey = "anna"\nsecretKey = "s3cret"\nname = "Anna"\nrequest = ["$bus/**"]\nsubscribe = ["price/**"]\n'
    )
    keys.chmod(0o600)
    async with busway.serve(http=busway.Http(address="127.0.0.1:0", keys=keys)) as server:
        context = await browser.new_context(viewport=console.WIDE)
        tab = console.Tab(await context.new_page(), server.http)
        await tab.page.goto(server.http)
        await tab.page.get_by_label("Key").fill("anna")
        await tab.page.get_by_label("Secret").fill("wrong")
        assert await tab.findings() == []
        await tab.page.get_by_role("button", name="Log in").last.click()
        await expect(tab.page.get_by_role("alert")).to_contain_text("signature")
        await tab.page.get_by_label("Secret").fill("s3cret")
        await tab.page.keyboard.press("Enter")
        await tab.shows("Nothing is wrong.")
        await tab.go("#/users")
        await tab.shows("Grants of Anna")
        await expect(row(tab.page, "subscribe price/**")).to_contain_text("allow")
        await tab.go("#/topics?path=secret")
        await expect(tab.page.get_by_role("alert")).to_contain_text("apiKey may not subscribe secret")
        assert (tab.errors, tab.foreign) == ([], [])
        await context.close()


async def test_keys_of_the_keyboard(tab):
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await expect(page.get_by_role("heading", name="Channels", level=1)).to_be_visible()
    await expect(page.get_by_role("row").nth(1)).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("ship")
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement !== document.body")
