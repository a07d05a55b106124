"""Drives the console in Chromium with Playwright: one tab, with all errors of its console and all of its requests."""

import shutil
from contextlib import asynccontextmanager
from pathlib import Path

from axe_playwright_python import base as axe
from playwright.async_api import async_playwright, expect

from tests.support.chromium import FLAGS, NAMES

PATIENCE = 10_000
"""Milliseconds that the page has to show something."""
AXE = Path(axe.__file__).with_name("axe.min.js")
NARROW = {"width": 380, "height": 780}
WIDE = {"width": 1360, "height": 880}

expect.set_options(timeout=PATIENCE)


class Tab:
    """One tab with the console of a server."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.errors = []
        self.foreign = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)
        page.set_default_timeout(PATIENCE)

    def _said(self, message):
        if message.type in {"error", "warning"}:
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _asked(self, request):
        if not request.url.startswith((self.url, self.url.replace("http", "ws"), "data:", "blob:")):
            self.foreign.append(request.url)

    async def open(self, path=""):
        """Open a screen, and wait until the tab is connected."""
        await self.page.goto(f"{self.url}/{path}")
        await expect(self.page.get_by_role("status").filter(has_text="Connected")).to_be_visible()

    async def go(self, path):
        """Open another screen of the loaded page."""
        await self.page.evaluate("path => { location.hash = path }", path)

    async def shows(self, text):
        await expect(self.page.locator("main")).to_contain_text(text)

    async def findings(self):
        """What axe finds that is serious or critical, as texts."""
        await self.page.evaluate(AXE.read_text("utf-8"))
        found = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']} ({', '.join(node['html'][:120] for node in one['nodes'][:3])})"
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
        ]

    async def picture(self, path, *, theme="light", size=None, whole=True):
        """A screenshot."""
        await self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        await self.page.set_viewport_size(size or WIDE)
        await self.page.wait_for_timeout(250)  # charts resize with the next frames
        if whole:  # the page scrolls inside of the frame
            height = await self.page.evaluate("document.querySelector('main').scrollHeight + 60")
            await self.page.set_viewport_size({**(size or WIDE), "height": min(max(height, 500), 4000)})
            await self.page.wait_for_timeout(150)
        await self.page.screenshot(path=path)


@asynccontextmanager
async def browser():
    """A headless Chromium. It ends with the block."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program is not None, "Chromium is not installed: scripts/system-packages.sh chromium"
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=program, args=[*FLAGS[1:-1]])
        try:
            yield found
        finally:
            await found.close()


@asynccontextmanager
async def tab(found, url, path="", **options):
    """A tab with the console; it must have no error and no foreign request at the end."""
    context = await found.new_context(viewport=WIDE, locale="en-GB", timezone_id="Europe/Warsaw", **options)
    try:
        made = Tab(await context.new_page(), url)
        await made.open(path)
        yield made
        assert made.errors == []
        assert made.foreign == []
    finally:
        await context.close()
