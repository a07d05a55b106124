"""The pytest example of docs/howto/testing.md, run as a reader would: in a folder of its own."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/testing.md"
FILE = re.compile(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_passes(tmp_path):
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"pyproject.toml", "conftest.py", "test_doubling.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "asyncio_mode" in PAGE.read_text()
