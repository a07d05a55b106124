"""Files of the console: its page, scripts and styles, with the headers that browsers need. Values; read once.

The scripts of other projects in `vendor/` come from their packages when Busway is built, see `scripts/console_vendor.py`.
All files have a path with a digest of their content, so a browser caches them for ever.
"""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Self

MODULES: Final = {
    "preact": "preact.js",
    "preact/hooks": "preact-hooks.js",
    "htm": "htm.js",
    "@preact/signals-core": "signals-core.js",
    "@preact/signals": "signals.js",
    "uplot": "uplot.js",
}
"""Names that scripts import, and their files in `vendor/`."""
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}
MISSING: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Busway</title><h1>The console is not complete</h1>"
    "<p>This build of Busway lacks the scripts of other projects that the console needs. "
    "In a source tree run <code>make console</code>, which needs npm; packages of Busway contain them."
)


class Incomplete(Exception):  # noqa: N818, the name states what happened
    """A script of another project is missing."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, also compressed."""

    kind: str
    body: bytes
    packed: bytes


class Assets:
    """All files of the console."""

    def __init__(self, static: dict[str, bytes], vendor: dict[str, bytes]) -> None:
        """`static` are the console's own files, and `vendor` those of other projects. Raises Incomplete."""
        if missing := [name for name in (*MODULES.values(), "uplot.css") if name not in vendor]:
            raise Incomplete(", ".join(missing))
        own = {name: _without_comments(name, body) for name, body in static.items() if name != "index.html"}
        everything = own | {f"vendor/{name}": body for name, body in vendor.items()}
        digest = hashlib.sha256()
        for name, body in sorted((everything | {"index.html": static["index.html"]}).items()):
            digest.update(f"{name} {len(body)}\n".encode() + body)
        self.digest = digest.hexdigest()[:16]
        self.base = f"/console/{self.digest}"
        """The path of all files."""
        self.files = {name: _asset(name, body) for name, body in everything.items()}
        imports = json.dumps({"imports": {name: f"{self.base}/vendor/{file}" for name, file in MODULES.items()}})
        scripts = [name for name in self.files if name.endswith(".js")]
        preloads = "\n".join(f'<link rel="modulepreload" href="{self.base}/{name}">' for name in scripts)
        page = static["index.html"].decode().replace("{{base}}", self.base)
        page = page.replace("{{imports}}", imports).replace("{{preloads}}", preloads)
        self.page = _asset("index.html", page.encode())
        allowed = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
        self.policy = (
            f"default-src 'none'; script-src 'self' 'sha256-{allowed}'; style-src 'self'; img-src 'self' data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        """The Content-Security-Policy of the page: only its own files and connections, and only this import map."""

    @classmethod
    def load(cls) -> Self:
        """The files of this package. Raises Incomplete."""
        folder = files("busway.gateway.console")
        return cls(_read(folder / "static"), _read(folder / "vendor"))

    @property
    def compressed(self) -> int:
        """Bytes that a browser loads at its first visit, without headers."""
        loaded = (asset for name, asset in self.files.items() if not name.startswith("vendor/LICENSE"))
        return len(self.page.packed) + sum(len(asset.packed) for asset in loaded)


def _read(folder: Traversable) -> dict[str, bytes]:
    """The files of a folder and of those below it, by their path."""
    if not folder.is_dir():
        return {}
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_file():
            found[entry.name] = entry.read_bytes()
        else:
            found |= {f"{entry.name}/{name}": body for name, body in _read(entry).items()}
    return found


_COMMENTS: Final = re.compile(
    rb"^[ \t]*/\*\*.*?\*/[ \t]*\n|^// @ts-check\n|/\*\* @[^*]*\*/ ?", re.MULTILINE | re.DOTALL
)
"""Comments for readers and types. A topic pattern in a text, such as `a/**`, is none."""


def _without_comments(name: str, body: bytes) -> bytes:
    return _COMMENTS.sub(b"", body) if name.endswith(".js") else body


def _asset(name: str, body: bytes) -> Asset:
    kind = _TYPES.get(name[name.rfind(".") :], "text/plain; charset=utf-8")
    return Asset(kind, body, gzip.compress(body, 9, mtime=0))
