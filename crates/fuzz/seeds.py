"""Writes the corpus that fuzzing begins with, from the test vectors of docs/protocol.md: python3 seeds.py FOLDER."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FEED, FRAME, CLIENTS = 0, 2, 4


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    found = []
    for line in page.partition(f"\n### {heading}\n")[2].splitlines():
        if line.startswith("#"):
            break
        if line.startswith("|"):
            found.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return found[2:]


def step(client: int, action: int, data: bytes) -> bytes:
    """One step of the script that the engine's driver reads."""
    return bytes([action * 4 + client, len(data)]) + data


def main(folder: Path) -> None:
    frames = {name: (way, bytes.fromhex(data)) for name, way, data, _ in rows("Vectors of frames")}
    seeds: dict[str, dict[str, bytes]] = {name: {} for name in ("engine_feed", "session_feed", "topics", "patterns")}
    clients = {"alice": 0, "bob": 1}
    script = b""
    for who, way, names, _ in rows("An exchange"):
        for name in names.split():
            if way == "→" and not name.startswith("hello"):
                script += step(clients[who], FRAME, frames[name][1][4:])
    seeds["engine_feed"]["exchange"] = script
    for name, (way, data) in frames.items():
        seeds["engine_feed" if way == "→" else "session_feed"][name] = (
            step(3 if name.startswith("hello") else 2, FEED, data) if way == "→" else b"\x05\x20" + data
        )
    for name, when, data, *_ in rows("Refused"):
        raw = bytes.fromhex(data)
        seeds["engine_feed"][f"refused-{name}"] = step(2 if when == "after" else 3, FEED, raw)
        seeds["session_feed"][f"refused-{name}"] = b"\x05\x20" + raw
    received = b"".join(data for way, data in frames.values() if way == "←")
    seeds["session_feed"]["everything"] = b"\x05\x20" + received
    topics = json.loads((ROOT / "tests" / "vectors" / "topics.json").read_text(encoding="utf-8"))
    for index, case in enumerate(topics["cases"]):
        seeds["topics"][f"case-{index}"] = f"{case['subscribe']}\n{case['publish']}".encode()
        expression = case["subscribe"].replace("**", ".*").replace("/*", "/[^/]+")
        seeds["patterns"][f"case-{index}"] = f"{expression}\n{case['publish']}".encode()
    for target, files in seeds.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / target / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
