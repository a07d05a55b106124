"""Fetches the scripts of other projects that the console uses: `python -m scripts.console_vendor`, or `make console`.

npm downloads each package from its registry. A package whose hash differs from the one below is refused. Nothing of it
runs: the script copies single files into src/busway/gateway/console/vendor, which git ignores and wheels contain.
"""

import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "src" / "busway" / "gateway" / "console" / "vendor"


class Package(NamedTuple):
    """A package of npm, the SHA-512 of its archive, and the files to copy with their new names."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES: Final = (
    Package(
        "preact",
        "11.2.0",
        "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "signals.js"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "signals-core.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
    ),
)
_SOURCE_MAP: Final = re.compile(rb"\n//# sourceMappingURL=\S+\s*$")
"""A reference to a file that is not copied."""


def main() -> int:
    """Fetch the packages whose files are missing. Returns the exit code."""
    npm = shutil.which("npm")
    if npm is None:
        sys.stderr.write(
            "the console needs scripts of other projects, which npm downloads: install npm and run 'make console'. "
            "Everything else works without.\n"
        )
        return 3
    with tempfile.TemporaryDirectory(prefix="busway-console-") as folder:
        made: dict[str, bytes] = {}
        for package in PACKAGES:
            made |= _files(package, _archive(npm, package, Path(folder)))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        if old.name not in made:
            old.unlink()
    for name, body in made.items():
        (FOLDER / name).write_bytes(body)
    size = sum(len(body) for body in made.values())
    sys.stdout.write(f"the console has its scripts: {size // 1024} KiB of {len(PACKAGES)} packages\n")
    return 0


def _archive(npm: str, package: Package, folder: Path) -> bytes:
    """The archive of a package. Raises SystemExit if it is not the expected one."""
    wanted = f"{package.name}@{package.version}"
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"npm can't download {wanted}: {done.stderr.strip() or done.stdout.strip()}")
    archive = (folder / done.stdout.split()[-1]).read_bytes()
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != package.integrity:
        raise SystemExit(f"{wanted} has the SHA-512 {found}, not {package.integrity}: it is refused")
    return archive


def _files(package: Package, archive: bytes) -> dict[str, bytes]:
    """The files of a package, and its licence."""
    made = {}
    licence = f"LICENSE-{package.name.replace('@', '').replace('/', '-')}"
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        names = set(files.getnames())
        wanted = package.files | ({"LICENSE": licence} if "package/LICENSE" in names else {})
        for path, name in wanted.items():
            member = files.extractfile(f"package/{path}")
            assert member is not None
            made[name] = _SOURCE_MAP.sub(b"\n", member.read())
    if "uplot.js" in made:  # a script that sets a variable; as a module it exports that
        made["uplot.js"] += b"\nexport default uPlot;\n"
    return made


if __name__ == "__main__":
    raise SystemExit(main())
