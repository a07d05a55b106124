"""Five questions of an operator, each answered by at most three clicks from the overview."""

import asyncio
from datetime import datetime

import pytest
import pytest_asyncio
from playwright.async_api import expect

import busway
from tests.support import console
from tests.support.console_data import FAILING, ORDERS, busy, order

pytestmark = [pytest.mark.xdist_group("chromium"), pytest.mark.timeout(90), pytest.mark.asyncio(loop_scope="module")]

LATEST = 5 * FAILING


class Clicks:
    """A person who counts clicks."""

    def __init__(self, page):
        self.page = page
        self.count = 0

    async def on(self, found):
        self.count += 1
        await found.click()

    async def link(self, name):
        await self.on(self.page.get_by_role("link", name=name, exact=True).first)


@pytest_asyncio.fixture(loop_scope="module")
async def server():
    async with busway.serve(name="krakow", http="127.0.0.1:0") as made, busy(made) as clients:
        feed = clients["feed"]
        await feed.publish("orders/eu", order(LATEST), durable=True)
        async with asyncio.timeout(20):
            while (await feed.channel_info("orders", "billing")).dead <= ORDERS // FAILING:
                await asyncio.sleep(0.05)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def person(browser, server):
    async with console.tab(browser, server.http) as tab:
        made = Clicks(tab.page)
        yield made
        assert made.count <= 3


async def test_why_is_this_consumer_behind(person):
    await person.link("Channels")
    await person.link("orders/shipping")
    await expect(person.page.locator(".explained")).to_contain_text(
        f"No consumer is connected. {ORDERS + 1} messages wait."
    )


async def test_what_does_the_latest_dead_letter_say(person):
    await person.link("Channels")
    await person.link("orders/billing")
    await expect(person.page.get_by_role("row").filter(has_text="no price for").first).to_contain_text(
        f"order {LATEST}"
    )
    await person.on(person.page.get_by_role("row").filter(has_text="no price for").first)
    await expect(person.page.locator("dialog.drawer")).to_contain_text(f"no price for order {LATEST}")


async def test_who_publishes_on_this_topic(person):
    await person.link("Topics")
    await person.on(person.page.get_by_role("searchbox", name="Go to a topic"))
    await person.page.keyboard.type("price/eth/eur\n")
    await expect(person.page.locator(".card", has_text="1 publisher").first).to_contain_text("feed")


async def test_what_was_published_at_a_time(person):
    now = datetime.now().astimezone()
    await person.link("Streams")
    await person.link("orders")
    form = person.page.locator(".browse-form")
    await form.get_by_label("From").select_option("time")
    await form.get_by_role("textbox", name="Time").fill(now.strftime("%Y-%m-%dT00:00:00"))
    await form.get_by_role("textbox", name="Time").press("Enter")
    await expect(person.page.get_by_role("row").filter(has_text='"id": 1,').first).to_be_visible()


async def test_is_anything_wrong(person):
    await expect(person.page.locator(".problems-card")).to_contain_text("2 problems")
