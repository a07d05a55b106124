"""A headless Chromium, driven over its DevTools protocol: opens pages, runs scripts in them, and waits for output."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import aiohttp

PATIENCE = 20.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root may not have one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-extensions",
    "--remote-debugging-port=0",
)
LISTENS = re.compile(r"DevTools listening on (ws://\S+)")


@contextmanager
def chromium(*more):
    """A browser of its own with `more` flags, and the address of its DevTools. It ends with the block, with all its processes."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program is not None, (
        "Chromium is not installed: scripts/system-packages.sh chromium, or apt-get install chromium"
    )
    with tempfile.TemporaryDirectory(prefix="busway-chromium-", ignore_cleanup_errors=True) as folder:
        said = Path(folder, "stderr")
        with said.open("wb") as errors:
            process = subprocess.Popen(
                [program, *FLAGS, *more, f"--user-data-dir={folder}/profile", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder},
                start_new_session=True,
            )
        try:
            yield _address(process, said)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(PATIENCE)


def _address(process, said):
    """Wait until the browser has said where it listens."""
    for _ in range(int(PATIENCE / 0.02)):
        if found := LISTENS.search(said.read_text("utf-8", "replace")):
            return found[1]
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"Chromium did not start: {said.read_text('utf-8', 'replace')[-2000:]}")


class Page:
    """One tab."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = count(1)
        self._answers = {}
        self._session = None
        self.errors = []
        """What scripts of the page raised and nobody caught, and errors on its console."""

    async def read(self):
        """Deal with what the browser says, until it says no more."""
        async for frame in self._socket:
            said = json.loads(frame.data)
            if (answer := self._answers.pop(said.get("id"), None)) is not None and not answer.done():
                answer.set_result(said)
            elif said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(said["params"]["exceptionDetails"])

    async def ask(self, method, **params):
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        await self._socket.send_json({"id": number, "method": method, "params": params, **session})
        said = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in said, said["error"]
        return said["result"]

    async def open(self, url):
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await self.ask("Runtime.enable")
        await self.ask("Page.enable")
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script):
        """The value of an expression, awaited if it is a promise."""
        said = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, condition):
        """Wait until an expression is true."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not await self.run(f"Boolean({condition})"):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            shown = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {condition}\nthe page shows:\n{shown}") from None

    async def shows(self, selector, text):
        await self.until(f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})")

    async def fill(self, **fields):
        """Fields by their names in `form_field`."""
        for name, value in fields.items():
            form, _, field = name.partition("_")
            await self.run(f"document.querySelector('#{form} [name={field}]').value = {json.dumps(value)}")

    async def submit(self, form):
        await self.run(f"document.querySelector('#{form} button').click()")


@asynccontextmanager
async def page(address, url):
    """A tab that has opened this page; closed with the block."""
    async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
        tab = Page(socket)
        reading = asyncio.create_task(tab.read())
        try:
            await tab.open(url)
            yield tab
            await tab.ask("Page.close")
        finally:
            reading.cancel()
